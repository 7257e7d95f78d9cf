#include "trireme/train/run/run_folder.h"

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

#include "trireme/base/bounded_file.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/host.h"
#include "trireme/base/json_nesting.h"
#include "trireme/base/open_file.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// Another process may rename the folder after its lock was opened. Then the folder is new, and needs another
/// try.
constexpr int kTries = 10;
/// A killed process holds its lock until its memory is released.
constexpr double kLastBreath_s = 5;

[[noreturn]] void fail(std::string_view what, const fs::path& path, int code) {
  throw DataError(text("cannot ", what, " ", path.string(), ": ", problem_of_open(code)));
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> words{};
  std::strftime(words.data(), words.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return words.data();
}

/// Content of the lock; an empty object if there is none or a writer was killed.
Json read_holder(const fs::path& lock) {
  const std::string content = read_bounded_file(lock, kMaxConfigBytes, "lock of a run");
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

std::string RunFolder::real_path() const {
  std::error_code error;
  const fs::path whole = fs::absolute(root, error);
  const fs::path real = fs::weakly_canonical(whole, error);
  return (error ? whole : real).string();
}

void require_no_links(const fs::path& root, const fs::path& below) {
  fs::path folder = root;
  for (const fs::path& name : below.parent_path()) {
    folder /= name;
    std::error_code ignored;
    require(
        fs::symlink_status(folder, ignored).type() != fs::file_type::symlink, folder.string(),
        " is a symbolic link, and a run does not write through links inside its folder: put a folder there, "
        "or link ",
        root.string(), " as a whole");
  }
}

RunLock::RunLock(RunFolder folder, const Log& log) : folder_(std::move(folder)), log_(log) {
  take();
  start_ = word_in(read_holder(folder_.lock()), "start");
  write_holder();
}

RunLock::~RunLock() {
  if (foreign_) ::unlink(folder_.lock().c_str());
  if (made_ && !has_files()) {
    ::unlink(folder_.lock().c_str());
    ::rmdir(folder_.root.c_str());
  }
}

void RunLock::take() {
  for (int i = 0; i < kTries; ++i) {
    std::error_code ignored;
    made_ = !fs::exists(folder_.root, ignored);
    make_folder(folder_.root);
    foreign_ = !fs::exists(folder_.lock(), ignored) && has_files() && !is_of_a_run();
    FileDescriptor opened = open_file(folder_.lock(), O_RDWR | O_CREAT);
    if (!opened.is_open() && errno == ENOENT) continue;
    if (!opened.is_open()) fail("open", folder_.lock(), errno);
    file_ = std::move(opened);
    lock();
    if (is_still_in_place()) return;
  }
  throw DataError(text("cannot lock ", folder_.lock().string(), ": others rename the folder all the time"));
}

void RunLock::lock() const {
  const Deadline gone = Deadline::after_s(kLastBreath_s);
  while (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      log_.warning("cannot lock ", folder_.lock().string(), ": ", std::strerror(errno),
                   "; a second run of this name would not be rejected, and would overwrite this one");
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
  return ::fstat(file_.get(), &held) == 0 && ::lstat(folder_.lock().c_str(), &there) == 0 &&
         held.st_dev == there.st_dev && held.st_ino == there.st_ino;
}

/// Writes in place, since the lock is held on this file only.
void RunLock::write_holder() const {
  const std::string content =
      Json{{"pid", ::getpid()}, {"host", host_name()}, {"since", utc_now()}, {"start", start_}}.dump(2) +
      "\n";
  if (::ftruncate(file_.get(), 0) != 0 ||
      ::pwrite(file_.get(), content.data(), content.size(), 0) != static_cast<ssize_t>(content.size()))
    fail("write", folder_.lock(), errno);
}

void RunLock::assign_to(const std::string& start) {
  check_existing();
  start_ = start;
  write_holder();
}

bool RunLock::has_files() const {
  std::error_code error;
  for (fs::directory_iterator entry(folder_.root, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (entry->path() != folder_.lock()) return true;
  }
  return static_cast<bool>(error);  // a folder that cannot be listed may not be empty
}

/// A folder of an older version may have no lock.
bool RunLock::is_of_a_run() const {
  std::error_code ignored;
  return fs::exists(folder_.config(), ignored) || fs::exists(folder_.checkpoints(), ignored);
}

void RunLock::check_existing() const {
  for (const fs::path& folder : {folder_.checkpoints(), folder_.best(), folder_.tensorboard()})
    require_no_links(folder_.root, fs::path(folder.filename()) / "any");
}

fs::path RunLock::start_fresh(const std::string& start) {
  fs::path moved;
  if (has_files()) {
    require(!foreign_, folder_.root.string(),
            " is not empty, and no run has made what is in it; choose another run.name or run.folder");
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
