#include "trireme/telemetry/run_end.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <mutex>
#include <nlohmann/json.hpp>

#include "trireme/base/bounded_file.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/host.h"
#include "trireme/base/json_nesting.h"
#include "trireme/base/open_file.h"

namespace trireme::telemetry {
namespace {

using Json = nlohmann::ordered_json;

/// Limit for a lock file, and for an end with its message.
constexpr std::uint64_t kMaxEndBytes = std::uint64_t{4} << 20;

/// Returns an empty object if the content is not an object.
Json object_in(const std::string& content) {
  if (nests_deeper(content, 1)) return Json::object();
  const Json found = Json::parse(content, nullptr, /*allow_exceptions=*/false);
  return found.is_object() ? found : Json::object();
}

std::string words_in(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::int64_t number_in(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}

std::string status_of(int exit_code) {
  switch (exit_code) {
    case kExitUsage:
      return "refused";
    case kExitDiverged:
      return "diverged";
    default:
      return "failed";
  }
}

}  // namespace

void write_failure(const std::filesystem::path& path, const Failure& failure, std::int64_t steps) {
  static std::mutex one_rank_of_this_process;
  const std::lock_guard lock(one_rank_of_this_process);
  const std::optional<RunEnd> before = read_run_end(path);
  if (before && (before->exit_code != kExitComm || failure.exit_code == kExitComm)) return;
  write_run_end(path, {.status = status_of(failure.exit_code),
                       .exit_code = failure.exit_code,
                       .message = failure.message,
                       .steps = steps});
}

void write_run_end(const std::filesystem::path& path, const RunEnd& end) {
  const Json json = {
      {"status", end.status}, {"exit_code", end.exit_code}, {"message", end.message}, {"steps", end.steps}};
  write_file_atomic(path, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::optional<RunEnd> read_run_end(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  const Json json = object_in(read_bounded_file(path, kMaxEndBytes, "record of the end of a run"));
  RunEnd end{.status = words_in(json, "status"),
             .exit_code = static_cast<int>(number_in(json, "exit_code")),
             .message = words_in(json, "message"),
             .steps = number_in(json, "steps")};
  if (end.status.empty()) throw DataError(text(path.string(), ": expected one JSON object with a 'status'"));
  return end;
}

LockHolder holder_of(const std::filesystem::path& lock) {
  FileDescriptor file = open_file(lock, O_RDONLY);
  if (!file.is_open()) return {};
  const bool is_free = ::flock(file.get(), LOCK_SH | LOCK_NB) == 0;
  const bool is_held = !is_free && errno == EWOULDBLOCK;
  file = {};
  const Json holder = object_in(read_bounded_file(lock, kMaxEndBytes, "lock of a run"));
  LockHolder found;
  const std::string host = words_in(holder, "host");
  if (holder.contains("pid"))
    found.who = text("process ", holder["pid"].dump(), " on ", host, " since ", words_in(holder, "since"));
  if (is_held) found.state = LockHolder::State::kAlive;
  if (is_free && host == host_name()) found.state = LockHolder::State::kGone;
  return found;
}

std::string start_of_run(const std::filesystem::path& folder) {
  const std::filesystem::path lock = folder / "run.lock";
  std::error_code ignored;
  if (!std::filesystem::exists(lock, ignored)) return {};
  return words_in(object_in(read_bounded_file(lock, kMaxEndBytes, "lock of a run")), "start");
}

}  // namespace trireme::telemetry
