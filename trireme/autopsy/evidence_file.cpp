#include "trireme/autopsy/evidence_file.h"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <nlohmann/json.hpp>

#include "trireme/base/bounded_file.h"
#include "trireme/base/bounded_json.h"
#include "trireme/base/error.h"
#include "trireme/base/json_whole.h"

namespace trireme::autopsy {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 20;
/// Ranks in a file. A launcher starts fewer, and a host has fewer cores.
constexpr std::size_t kMostRanks = 256;
/// Bytes of the files of all hosts.
constexpr std::uint64_t kMaxBytesOfAll = std::uint64_t{256} << 20;
/// Ranks in the files of all hosts.
constexpr std::size_t kMaxRanksOfAll = 32'768;
/// Threads, peers or lines of a rank. A launcher writes at most 8.
constexpr std::size_t kMaxInList = 16;
/// Limit of times, rates and shares.
constexpr double kLargest = 1e12;
/// Files of one failure are written within a timeout of each other.
constexpr double kSameFailure_s = 120;

/// `Value` or `const Value`.
template <class Given, class Value>
concept Either = std::same_as<std::remove_const_t<Given>, Value>;

// The fields of each struct, once for both directions.

template <Either<BlockedThread> Thread, class Visit>
void visit_fields(Thread& thread, Visit&& visit) {
  visit("name", thread.name);
  visit("state", thread.state);
  visit("call", thread.call);
  visit("target", thread.target);
  visit("kind", thread.kind);
  visit("kernel", thread.kernel);
  visit("first", thread.first);
}

template <Either<SilentPeer> Peer, class Visit>
void visit_fields(Peer& peer, Visit&& visit) {
  visit("address", peer.address);
  visit("retransmissions", peer.retransmissions);
}

template <Either<RankEvidence> Rank, class Visit>
void visit_fields(Rank& rank, Visit&& visit) {
  visit("rank", rank.rank);
  visit("pid", rank.pid);
  visit("host", rank.host);
  visit("action", rank.action);
  visit("operation", rank.operation);
  visit("own_work", rank.own_work);
  visit("still_s", rank.still_s);
  visit("waits_for", rank.waits_for);
  visit("ended", rank.ended);
  visit("ended_by_launcher", rank.ended_by_launcher);
  visit("exit_code", rank.exit_code);
  visit("signal", rank.signal);
  visit("ended_s", rank.ended_s);
  visit("last_lines", rank.last_lines);
  visit("log_read", rank.log_read);
  visit("killed_for_memory", rank.killed_for_memory);
  visit("kills_counted", rank.kills_counted);
  visit("oom_kills", rank.oom_kills);
  visit("group_oom_kills", rank.group_oom_kills);
  visit("group", rank.group);
  visit("group_limit_bytes", rank.group_limit_bytes);
  visit("state", rank.state);
  visit("frozen_by", rank.frozen_by);
  visit("freezer", rank.freezer);
  visit("window_s", rank.window_s);
  visit("busy", rank.busy);
  visit("busy_all", rank.busy_all);
  visit("waits_for_core", rank.waits_for_core);
  visit("throttled", rank.throttled);
  visit("major_faults_per_s", rank.major_faults_per_s);
  visit("bytes_per_s", rank.bytes_per_s);
  visit("swapped_bytes", rank.swapped_bytes);
  visit("blocked", rank.blocked);
  visit("silent_peers", rank.silent_peers);
}

template <Either<HostEvidence> Host, class Visit>
void visit_fields(Host& host, Visit&& visit) {
  visit("name", host.name);
  visit("oom_kills", host.oom_kills);
  visit("cpu_pressure", host.cpu_pressure);
  visit("memory_pressure", host.memory_pressure);
  visit("io_pressure", host.io_pressure);
  visit("swapped_pages_per_s", host.swapped_pages_per_s);
}

template <Either<Evidence> AnyEvidence, class Visit>
void visit_fields(AnyEvidence& evidence, Visit&& visit) {
  visit("occasion", evidence.occasion);
  visit("unix_s", evidence.unix_s);
  visit("world_size", evidence.world_size);
  visit("told_to_stop", evidence.told_to_stop);
  visit("told_by", evidence.told_by);
  visit("slowdown", evidence.slowdown);
  visit("hosts", evidence.hosts);
  visit("ranks", evidence.ranks);
}

// ---- to JSON ----

Json json_of(const std::string& value) { return value; }
template <class Number>
requires std::is_arithmetic_v<Number> Json json_of(Number value) { return value; }
Json json_of(double value) { return value >= 0 ? std::min(value, kLargest) : 0; }  // NaN: 0

template <class Value>
Json json_of(const std::vector<Value>& values);

template <class Struct>
requires std::is_class_v<Struct> Json json_of(const Struct& value) {
  std::vector<Json> defaults;
  const Struct empty{};
  visit_fields(empty, [&](const char*, const auto& field) { defaults.push_back(json_of(field)); });
  Json json = Json::object();
  // Fields with default values are left out: the file is small, and shows only findings.
  visit_fields(value, [&, i = std::size_t{0}](const char* name, const auto& field) mutable {
    Json member = json_of(field);
    if (member != defaults[i++]) json.emplace(name, std::move(member));
  });
  return json;
}

template <class Value>
Json json_of(const std::vector<Value>& values) {
  Json json = Json::array();
  for (const Value& each : values) json.push_back(json_of(each));
  return json;
}

// ---- from JSON ----

[[noreturn]] void reject(const char* name, const char* expected, const Json& found) {
  throw DataError(text("'", name, "': expected ", expected, ", found ", found.type_name()));
}

void take(const char* name, const Json& json, std::string& value) {
  if (!json.is_string()) reject(name, "text", json);
  value = json.get<std::string>();
}

void take(const char* name, const Json& json, bool& value) {
  if (!json.is_boolean()) reject(name, "true or false", json);
  value = json.get<bool>();
}

void take(const char* name, const Json& json, double& value) {
  if (!json.is_number()) reject(name, "a number", json);
  value = json.get<double>();
  if (value < 0 || value > kLargest)
    throw DataError(text("'", name, "': expected a number from 0 to ", kLargest, ", found ", value));
}

template <std::integral Whole>
void take(const char*, const Json& json, Whole& value) {
  value = whole_in<Whole>(json);
}

template <class Value>
void take(const char* name, const Json& json, std::vector<Value>& values);

template <class Struct>
requires std::is_class_v<Struct>
void take(const char* name, const Json& json, Struct& value) {
  if (!json.is_object()) reject(name, "an object", json);
  visit_fields(value, [&](const char* field_name, auto& field) {
    if (const auto found = json.find(field_name); found != json.end()) take(field_name, *found, field);
  });
}

template <class Value>
void take(const char* name, const Json& json, std::vector<Value>& values) {
  if (!json.is_array()) reject(name, "a list", json);
  // A list of numbers has the ranks that a rank waits for.
  constexpr bool kOfRanks = std::same_as<Value, RankEvidence> || std::integral<Value>;
  constexpr std::size_t kMost = kOfRanks ? kMostRanks : kMaxInList;
  if (json.size() > kMost)
    throw DataError(text("'", name, "': expected a list of at most ", kMost, ", found ", json.size()));
  for (const Json& each : json) take(name, each, values.emplace_back());
}

/// In a very large world, keeps ranks that ended by themselves, then those that wait for no rank. Among
/// these, the ones that stood still longest stay.
void leave_out_ranks(Evidence& evidence, std::size_t most) {
  if (evidence.ranks.size() <= most) return;
  const auto weight = [](const RankEvidence& rank) {
    return (rank.ended && !rank.ended_by_launcher ? 2e9 : 0) + (rank.waits_for.empty() ? 1e9 : 0) +
           rank.still_s;
  };
  std::ranges::stable_sort(evidence.ranks, std::greater(), weight);
  evidence.ranks.resize(most);
  std::ranges::sort(evidence.ranks, {}, &RankEvidence::rank);
}

/// Names of the files of all hosts, sorted.
std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    const std::vector<std::string> words = split(name, '.');
    const bool is_ours =
        words.front() == "autopsy" && words.back() == "json" &&
        (words.size() == 2 || (words.size() == 3 && words[1].size() <= 5 &&
                               words[1].find_first_not_of("0123456789") == std::string::npos));
    if (is_ours) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

void check_size(const std::filesystem::path& folder, const std::vector<std::string>& names) {
  std::uint64_t bytes = 0;
  for (const std::string& name : names) {
    std::error_code error;
    const std::uintmax_t of_file = std::filesystem::file_size(folder / name, error);
    if (!error) bytes += of_file;
  }
  if (bytes > kMaxBytesOfAll)
    throw DataError(text(folder.string(), ": its ", names.size(), " records of a failure have ", bytes,
                         " bytes; expected at most ", kMaxBytesOfAll, ". Remove those of earlier failures"));
}

}  // namespace

std::string encode(const Evidence& evidence) {
  Evidence kept = evidence;
  for (std::size_t most = kMostRanks;; most /= 2) {
    leave_out_ranks(kept, most);
    std::string json = encode_all(kept);
    if (json.size() <= kMostBytes || most <= 1) return json;
  }
}

std::string encode_all(const Evidence& evidence) {
  return json_of(evidence).dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Evidence decode(std::string_view json) {
  Evidence evidence;
  take("autopsy", parse_json<Json>(json, {.levels = 8, .values = 200'000}), evidence);
  return evidence;
}

std::string file_name(int node, int num_nodes) {
  return num_nodes == 1 ? "autopsy.json" : text("autopsy.", node, ".json");
}

std::optional<Evidence> read_evidence(const std::filesystem::path& folder) {
  std::vector<Evidence> parts;
  const std::vector<std::string> names = names_in(folder);
  check_size(folder, names);
  std::size_t num_ranks = 0;
  for (const std::string& name : names) {
    const std::filesystem::path path = folder / name;
    std::error_code ignored;
    if (std::filesystem::is_symlink(path, ignored))
      throw DataError(
          text(path.string(), " is a symbolic link; expected the file that trireme launch wrote"));
    try {
      parts.push_back(decode(read_bounded_file(path, kMostBytes, "record of a failure")));
    } catch (const DataError& error) {
      throw DataError(text(path.string(), ": ", error.what()));
    }
    num_ranks += parts.back().ranks.size();
    if (num_ranks > kMaxRanksOfAll)
      throw DataError(
          text(path.string(), ": expected at most ", kMaxRanksOfAll, " ranks in all files, found more"));
  }
  if (parts.empty()) return std::nullopt;
  double newest_s = 0;
  for (const Evidence& part : parts) newest_s = std::max(newest_s, part.unix_s);
  std::erase_if(parts, [&](const Evidence& part) { return part.unix_s < newest_s - kSameFailure_s; });
  return merged(std::move(parts));
}

}  // namespace trireme::autopsy
