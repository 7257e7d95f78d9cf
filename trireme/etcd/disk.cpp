#include "trireme/etcd/internal/disk.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>

namespace trireme::etcd {
namespace {

constexpr std::size_t kPartBytes = 1 << 20;
constexpr std::int64_t kPartsAtOnce = 3;  // a reply is at most 4 MiB by gRPC's default
constexpr std::int64_t kNamesAtOnce = 1000;
constexpr int kMaxTries = 8;  // a late request of this process may change the head before each try

std::string_view text_of_bytes(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// An unreachable etcd is a temporary failure. A rejection needs the operator.
template <class Call>
auto or_not_now(const Call& call) {
  try {
    return call();
  } catch (const Unreachable& error) {
    throw NotNow(error.what());
  }
}

void check_name(const std::string& name) {
  require(!name.empty() && name.find('/') == std::string::npos, "'", name,
          "' is no name of a node's file; expected one without '/'");
}

}  // namespace

Disk::Disk(Client client, std::string prefix, std::shared_ptr<Term> term)
    : client_(std::move(client)), prefix_(std::move(prefix)), term_(std::move(term)) {}

Disk::Head Disk::parsed(const std::string& key, const std::string& value) {
  try {
    const auto json = nlohmann::json::parse(value);
    return {.generation = json.at("generation"),
            .parts = json.at("parts"),
            .bytes = json.at("bytes"),
            .write = json.at("write")};
  } catch (const nlohmann::json::exception& error) {
    throw DataError(text("etcd's key ", key, " holds '", value.substr(0, 100),
                         "', which is no head of a file (", error.what(),
                         "): another program uses this prefix, choose one of its own"));
  }
}

std::string Disk::text_of(const Head& head) {
  return nlohmann::json{
      {"generation", head.generation}, {"parts", head.parts}, {"bytes", head.bytes}, {"write", head.write}}
      .dump();
}

std::string Disk::head_key(const std::string& name) const {
  check_name(name);
  return prefix_ + "/files/" + name;
}
std::string Disk::parts_key(const std::string& name) const { return prefix_ + "/parts/" + name + "/"; }

std::string Disk::part_key(const std::string& name, const Head& head, std::int64_t part) const {
  char number[24];
  std::snprintf(number, sizeof number, "/%08lld", static_cast<long long>(part));
  return parts_key(name) + head.generation + number;
}

std::vector<std::string> Disk::names() const {
  const std::string folder = head_key("x").substr(0, head_key("x").size() - 1);
  std::vector<std::string> result;
  std::string from = folder;
  while (true) {
    const Listing found = or_not_now([&] { return client_.list(from, end_of(folder), kNamesAtOnce); });
    for (const KeyValue& each : found.pairs) result.push_back(each.key.substr(folder.size()));
    if (!found.more || found.pairs.empty()) return result;
    from = found.pairs.back().key + '\0';
  }
}

std::optional<std::vector<std::byte>> Disk::read(const std::string& name) const {
  const std::string key = head_key(name);
  Revision at = 0;
  const auto pair = or_not_now([&] { return client_.get(key, &at); });
  std::vector<std::byte> result;
  if (pair) {
    const Head head = parsed(key, pair->value);
    const std::string end = part_key(name, head, head.parts);
    std::string from = part_key(name, head, 0);
    std::int64_t parts = 0;
    for (bool more = head.parts > 0; more;) {
      const Listing found = or_not_now([&] { return client_.list(from, end, kPartsAtOnce, at); });
      for (const KeyValue& each : found.pairs) {
        const auto bytes = std::as_bytes(std::span(each.value));
        result.insert(result.end(), bytes.begin(), bytes.end());
        ++parts;
      }
      more = found.more && !found.pairs.empty();
      if (more) from = found.pairs.back().key + '\0';
    }
    if (parts != head.parts || std::cmp_not_equal(result.size(), head.bytes))
      throw DataError(text(key, " in etcd names ", head.parts, " parts of ", head.bytes, " bytes, and ",
                           parts, " of ", result.size(), " bytes are there: restore a snapshot of etcd"));
  }
  const auto file = files_.find(name);
  const bool is_added_to = file != files_.end() && !file->second.added.empty();
  if (!pair && !is_added_to) return std::nullopt;
  if (is_added_to) result.insert(result.end(), file->second.added.begin(), file->second.added.end());
  return result;
}

void Disk::append(const std::string& name, const std::vector<std::byte>& bytes) {
  check_name(name);
  File& file = files_[name];
  if (file.damaged)
    throw DataError(text("an earlier write to ", head_key(name),
                         " in etcd has failed, and what of it is there is not known: replace it"));
  file.added.insert(file.added.end(), bytes.begin(), bytes.end());
}

void Disk::sync(const std::string& name) {
  check_name(name);
  File& file = files_[name];
  append(name, {});  // throws if the file is damaged
  const std::vector<std::byte> bytes = std::exchange(file.added, {});
  write(name, file, bytes, How::kAppend);
}

void Disk::replace(const std::string& name, const std::vector<std::byte>& bytes) {
  check_name(name);
  File& file = files_[name];
  file.added.clear();
  write(name, file, bytes, How::kReplace);
}

void Disk::remove(const std::string& name) {
  Transaction transaction = {.when = {term_->condition()}, .writes = {}, .removals = {}};
  transaction.removals = {{.first = head_key(name), .end = {}},
                          {.first = parts_key(name), .end = end_of(parts_key(name))}};
  files_.erase(name);
  if (!commit(transaction).happened) deposed();
}

void Disk::take_head(File& file, const std::string& name, const std::optional<KeyValue>& pair) {
  file.head = pair ? parsed(head_key(name), pair->value) : Head{};
  file.modified = pair ? pair->modified : 0;
  file.known = true;
}

Outcome Disk::commit(const Transaction& transaction) {
  return or_not_now([&] { return client_.commit(transaction); });
}

void Disk::deposed() {
  term_->lose();
  throw NotNow(text("this process does not lead any more: ", term_->key(), " in etcd is not of revision ",
                    term_->made_at()));
}

void Disk::write(const std::string& name, File& file, std::span<const std::byte> bytes, How how) {
  file.damaged = true;  // until the write is known to be complete
  if (!file.known) take_head(file, name, or_not_now([&] { return client_.get(head_key(name)); }));
  const std::string write = term_->next_write();
  for (int i = 0; i < kMaxTries; ++i) {
    Head next = file.head;
    if (how == How::kReplace || next.generation.empty()) next = {.generation = write, .write = {}};
    next.write = write;
    next.bytes += static_cast<std::int64_t>(bytes.size());
    // All parts but the last are written before. Readers ignore them until the head names them.
    std::span<const std::byte> left = bytes;
    while (left.size() > kPartBytes) {
      const Transaction ahead = {.when = {term_->condition()},
                                 .writes = {{.key = part_key(name, next, next.parts++),
                                             .value = std::string(text_of_bytes(left.first(kPartBytes)))}},
                                 .removals = {}};
      if (!commit(ahead).happened) deposed();
      left = left.subspan(kPartBytes);
    }
    Transaction last = {.when = {term_->condition(),
                                 {.key = head_key(name),
                                  .what = Transaction::Condition::What::kModified,
                                  .is = file.modified}},
                        .writes = {},
                        .removals = {}};
    if (how == How::kReplace) {  // removes all other generations, also parts that no head has named
      const std::string all = parts_key(name), kept = all + next.generation + "/";
      last.removals = {{.first = all, .end = kept}, {.first = end_of(kept), .end = end_of(all)}};
    }
    if (!left.empty())
      last.writes.push_back(
          {.key = part_key(name, next, next.parts++), .value = std::string(text_of_bytes(left))});
    last.writes.push_back({.key = head_key(name), .value = text_of(next)});
    file.known = false;
    const Outcome outcome = commit(last);
    if (outcome.happened) {
      file = {.head = next, .modified = outcome.revision, .known = true, .damaged = false, .added = {}};
      return;
    }
    const auto& leader = outcome.instead.at(0);
    if (!leader || leader->created != term_->made_at()) deposed();
    take_head(file, name, outcome.instead.at(1));
    file.damaged = file.head.write != write;
    if (!file.damaged) return;  // an earlier try of this write has succeeded
    if (how == How::kAppend) break;
  }
  throw NotNow(text(head_key(name), " in etcd has changed while it was written, though this process leads"));
}

}  // namespace trireme::etcd
