#include "trireme/checkpoint/shared_folder.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <set>
#include <thread>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/comm/on_every_rank.h"

namespace trireme::checkpoint {
namespace {
namespace fs = std::filesystem;

std::string content_of(const fs::path& path) {
  try {
    return read_file(path);
  } catch (const DataError&) {
    return "";
  }
}

/// A random text that no other run has.
std::string fresh_token() {
  std::random_device random;
  std::string token;
  for (int i = 0; i < 12; ++i) token += "0123456789abcdef"[random() % 16];
  return token;
}

/// How long a shared file system may take to show files of another host.
constexpr double kLongestCaching_s = 120;

}  // namespace

std::vector<bool> ranks_that_see(comm::Group group, const fs::path& witness) {
  const bool is_owner = group.rank() == 0;
  const std::string mine = content_of(witness);
  const std::string owners = group.all_gather_text(is_owner ? mine : "").front();
  const bool same =
      !owners.empty() && mine == owners && ::access(witness.parent_path().c_str(), W_OK | X_OK) == 0;
  std::vector<bool> sees;
  for (const std::string& answer : group.all_gather_text(is_owner || same ? "yes" : ""))
    sees.push_back(!answer.empty());
  return sees;
}

SaveShares::SaveShares(comm::Group group, const Shards& mine, const std::vector<bool>& may_write)
    : group_(std::move(group)), catalogue_(group_, mine), writers_(share_out(catalogue_, may_write)) {
  catalogue_.check_complete();
  std::set<int> parts = {0};
  for (const ShardWriter& writer : writers_) parts.insert(writer.writer);
  parts_.assign(parts.begin(), parts.end());
  run_ = group_.all_gather_text(group_.rank() == 0 ? fresh_token() : "").front();
  const bool some_travel = std::any_of(writers_.begin(), writers_.end(),
                                       [](const ShardWriter& each) { return each.writer != each.source; });
  if (!some_travel) return;
  Shards outgoing;
  for (const Shard& shard : mine) {
    const Box box = shard.box();
    for (std::size_t i = 0; i < writers_.size(); ++i) {
      const ShardCatalogue::Entry& entry = catalogue_.entries()[i];
      if (entry.name != shard.name || entry.box != box || writers_[i].source != group_.rank()) continue;
      if (writers_[i].writer != writers_[i].source) outgoing.push_back(shard);
    }
  }
  to_writers_.emplace(group_, outgoing, incoming());
}

Shards SaveShares::incoming() const {
  Shards shards;
  for (std::size_t i = 0; i < writers_.size(); ++i) {
    if (writers_[i].writer != group_.rank() || writers_[i].source == group_.rank()) continue;
    shards.push_back(empty_shard(catalogue_.entries()[i]));
  }
  return shards;
}

std::optional<CheckpointPart> SaveShares::next_part(const Shards& mine, CheckpointHead head) {
  const std::string attempt = text(run_, "-", ++num_saves_);
  Shards shards = to_writers_ ? incoming() : Shards();
  if (to_writers_) to_writers_->run(mine, shards);
  const auto place = std::find(parts_.begin(), parts_.end(), group_.rank());
  if (place == parts_.end()) return std::nullopt;
  for (const Shard& shard : mine) {
    const auto entries = catalogue_.of(shard.name);
    const Box box = shard.box();
    const auto entry =
        std::find_if(entries.begin(), entries.end(), [&](const auto& each) { return each.box == box; });
    require(entry != entries.end(), "the shard ", describe(box), " of '", shard.name,
            "' was not there when the shares were made");
    const ShardWriter& writer = writers_[static_cast<std::size_t>(&*entry - catalogue_.entries().data())];
    if (writer.writer == group_.rank() && writer.source == group_.rank()) shards.push_back(shard);
  }
  return CheckpointPart{
      .head = std::move(head),
      .attempt = {.num_parts = static_cast<int>(parts_.size()), .name = attempt, .prefix = run_},
      .number = static_cast<int>(place - parts_.begin()),
      .shards = std::move(shards)};
}

void save_together(comm::Group group, const std::optional<CheckpointPart>& part, const fs::path& folder,
                   int keep) {
  const bool is_owner = group.rank() == 0;
  try {
    comm::on_every_rank(group, [&] {
      if (part) write_part(folder, *part);
    });
  } catch (const Error&) {
    if (is_owner) abandon_checkpoint(folder, *part, [] { return false; });
    throw;
  }
  // After the synchronization, all parts are written. A missing file is only not visible yet.
  const Deadline seen = Deadline::after_s(kLongestCaching_s);
  const auto wait = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return !seen.expired();
  };
  comm::on_every_rank(group, [&] {
    if (is_owner) finish_checkpoint(folder, *part, keep, wait);
  });
}

}  // namespace trireme::checkpoint
