#include "trireme/train/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/host.h"
#include "trireme/base/json_nesting.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// Others may rename the folder between the opening of its lock and the locking: then there is a new one.
constexpr int kTries = 10;
/// A process that was killed holds its lock until its memory is given back.
constexpr double kLastBreath_s = 5;

[[noreturn]] void fail(std::string_view what, const fs::path& path, int code) {
  throw DataError(text("cannot ", what, " ", path.string(), ": ", std::strerror(code)));
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> words{};
  std::strftime(words.data(), words.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return words.data();
}

/// What stands in the lock; without keys where nothing does, or a writer was killed in the middle.
Json read_holder(const fs::path& lock) {
  const std::string content = read_file(lock);
  if (nests_deeper(content, 1)) return Json::object();
  const Json found = Json::parse(content, nullptr, /*allow_exceptions=*/false);
  return found.is_object() ? found : Json::object();
}

std::string word_in(const Json& holder, const char* key) {
  const auto found = holder.find(key);
  return found != holder.end() && found->is_string() ? found->get<std::string>() : std::string();
}

[[noreturn]] void refuse(const RunFolder& folder, const Json& holder) {
  const std::string who = holder.contains("pid")
                              ? text("process ", holder["pid"].dump(), " on ", word_in(holder, "host"),
                                     " since ", word_in(holder, "since"))
                              : "a process that has just begun";
  throw InvalidArgument(text("another run is writing into ", folder.root.string(), ": ", who,
                             "; choose another run.name, or wait for its end"));
}

}  // namespace

RunLock::RunLock(RunFolder folder, const Log& log) : folder_(std::move(folder)), log_(log) {
  take();
  start_ = word_in(read_holder(folder_.lock()), "start");
  write_holder();
}

RunLock::~RunLock() {
  if (made_ && !has_files()) {
    ::unlink(folder_.lock().c_str());
    ::rmdir(folder_.root.c_str());
  }
  if (descriptor_ >= 0) ::close(descriptor_);
}

void RunLock::take() {
  for (int i = 0; i < kTries; ++i) {
    std::error_code ignored;
    made_ = !fs::exists(folder_.root, ignored);
    make_folder(folder_.root);
    const int opened = ::open(folder_.lock().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (opened < 0 && errno == ENOENT) continue;
    if (opened < 0) fail("open", folder_.lock(), errno);
    const int before = std::exchange(descriptor_, opened);
    if (before >= 0) ::close(before);
    lock();
    if (is_still_in_place()) return;
  }
  throw DataError(text("cannot lock ", folder_.lock().string(), ": others rename the folder all the time"));
}

void RunLock::lock() const {
  const Deadline gone = Deadline::after_s(kLastBreath_s);
  while (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      log_.warning("cannot lock ", folder_.lock().string(), ": ", std::strerror(errno),
                   "; a second run of this name would not be refused, and destroy this one");
      return;
    }
    const Json holder = read_holder(folder_.lock());
    if (gone.expired() || holder.value("pid", Json()) == ::getpid()) refuse(folder_, holder);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

bool RunLock::is_still_in_place() const {
  struct stat held {
  }, there{};
  return ::fstat(descriptor_, &held) == 0 && ::stat(folder_.lock().c_str(), &there) == 0 &&
         held.st_dev == there.st_dev && held.st_ino == there.st_ino;
}

/// In place, since the lock is on this file and no other.
void RunLock::write_holder() const {
  const std::string content =
      Json{{"pid", ::getpid()}, {"host", host_name()}, {"since", utc_now()}, {"start", start_}}.dump(2) +
      "\n";
  if (::ftruncate(descriptor_, 0) != 0 ||
      ::pwrite(descriptor_, content.data(), content.size(), 0) != static_cast<ssize_t>(content.size()))
    fail("write", folder_.lock(), errno);
}

void RunLock::assign_to(const std::string& start) {
  start_ = start;
  write_holder();
}

bool RunLock::has_files() const {
  std::error_code error;
  for (fs::directory_iterator entry(folder_.root, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (entry->path() != folder_.lock()) return true;
  }
  return static_cast<bool>(error);  // what cannot be listed is not known to be empty
}

fs::path RunLock::start_fresh(const std::string& start) {
  fs::path moved;
  if (has_files()) {
    std::error_code error;
    for (int number = 1; moved.empty() || fs::exists(moved, error); ++number)
      moved = text(folder_.root.string(), ".", number);
    fs::rename(folder_.root, moved, error);
    if (error) {
      throw DataError(text("cannot rename ", folder_.root.string(), " of an earlier run to ", moved.string(),
                           ": ", error.message()));
    }
    take();
  }
  assign_to(start);
  return moved;
}

}  // namespace trireme::train
