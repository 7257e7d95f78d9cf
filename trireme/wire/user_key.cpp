#include "trireme/wire/user_key.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/wire/socket.h"

namespace trireme::wire {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolder = "trireme";
constexpr const char* kFile = "user.key";
constexpr std::size_t kMaxKeyBytes = 4096;
constexpr const char* kOrElse =
    "; or give the processes a secret of their own (--secret-file, TRIREME_SECRET_FILE)";

[[noreturn]] void key_failed(const char* what, const fs::path& path, int error) {
  throw InvalidArgument(
      text("the key of this user: cannot ", what, " ", path.string(), ": ", std::strerror(error), kOrElse));
}

std::optional<fs::path> absolute_variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || !fs::path(value).is_absolute()) return std::nullopt;
  return value;
}

std::optional<fs::path> home_in_passwd() {
  std::vector<char> buffer(16 << 10);
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(::geteuid(), &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr)
    return std::nullopt;
  const fs::path home = entry.pw_dir;
  return home.is_absolute() ? std::optional(home) : std::nullopt;
}

/// Whether `path` is a folder that belongs to this user.
bool is_own_folder(const fs::path& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == ::geteuid();
}

/// Candidate folders. All but the last are below a folder of this user; the last one is in /tmp.
std::vector<fs::path> places() {
  std::vector<fs::path> result;
  if (const auto state = absolute_variable("XDG_STATE_HOME")) {
    std::error_code ignored;
    const bool may_be_made = !fs::exists(*state, ignored) && is_own_folder(state->parent_path());
    if (may_be_made || is_own_folder(*state)) result.push_back(*state / kFolder);
  }
  for (const auto& home : {absolute_variable("HOME"), home_in_passwd()})
    if (home && is_own_folder(*home)) result.push_back(*home / ".local/state" / kFolder);
  result.push_back(text("/tmp/trireme-", ::geteuid()));
  return result;
}

/// Creates missing parents too, and leaves existing folders unchanged. Returns 0 or errno.
int make_private(const fs::path& folder) {
  if (::mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST) return 0;
  if (errno != ENOENT || !folder.has_relative_path()) return errno;
  const int error = make_private(folder.parent_path());
  if (error != 0) return error;
  return ::mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST ? 0 : errno;
}

bool is_no_place(int error) {
  return error == EACCES || error == EPERM || error == EROFS || error == ENOENT || error == ENOTDIR ||
         error == ELOOP;
}

void require_private(int fd, const fs::path& path, const char* mode) {
  struct stat found {};
  if (::fstat(fd, &found) != 0) key_failed("look at", path, errno);
  require(found.st_uid == ::geteuid(), "the key of this user: ", path.string(), " belongs to user ",
          found.st_uid, "; expected user ", ::geteuid(), ": remove it", kOrElse);
  require((found.st_mode & 077) == 0, "the key of this user: ", path.string(),
          " is open to other users: chmod ", mode, " ", path.string());
}

/// Returns no descriptor if this folder cannot hold the key.
Socket open_place(const fs::path& folder, bool is_last) {
  const int made = make_private(folder);
  if (made != 0 && (is_last || !is_no_place(made))) key_failed("make the folder", folder, made);
  if (made != 0) return Socket();
  Socket fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (fd.fd() < 0 && (is_last || !is_no_place(errno))) key_failed("open the folder", folder, errno);
  if (fd.fd() >= 0) require_private(fd.fd(), folder, "700");
  return fd;
}

/// Creates the file atomically, and does not replace one that another process has created meanwhile.
void make_key(int folder, const fs::path& path) {
  const std::string key = Secret::random().reveal() + "\n";
  const std::string temporary = text(kFile, ".", ::getpid(), ".", Secret::random().reveal().substr(0, 16));
  const Socket file(
      ::openat(folder, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file.fd() < 0) key_failed("create", path, errno);
  const bool written =
      std::cmp_equal(::write(file.fd(), key.data(), key.size()), key.size()) && ::fsync(file.fd()) == 0;
  int error = written ? 0 : errno;
  if (written && ::linkat(folder, temporary.c_str(), folder, kFile, 0) != 0 && errno != EEXIST) {
    // Not every file system has links. Without them the later of two concurrent processes replaces the key.
    error = ::renameat(folder, temporary.c_str(), folder, kFile) == 0 ? 0 : errno;
  }
  ::unlinkat(folder, temporary.c_str(), 0);
  if (error != 0) key_failed("write", path, error);
}

std::optional<Secret> read_key(int folder, const fs::path& path) {
  const Socket file(::openat(folder, kFile, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.fd() < 0 && errno == ENOENT) return std::nullopt;
  if (file.fd() < 0) key_failed("open", path, errno);
  require_private(file.fd(), path, "600");
  std::array<char, kMaxKeyBytes> bytes;
  const ssize_t got = ::read(file.fd(), bytes.data(), bytes.size());
  if (got < 0) key_failed("read", path, errno);
  return Secret::from_text({bytes.data(), static_cast<std::size_t>(got)}, path.string());
}

}  // namespace

Secret user_key() {
  const std::vector<fs::path> all = places();
  for (const fs::path& folder : all) {
    const Socket opened = open_place(folder, folder == all.back());
    if (opened.fd() < 0) continue;
    const fs::path path = folder / kFile;
    if (auto key = read_key(opened.fd(), path)) return *key;
    make_key(opened.fd(), path);
    if (auto key = read_key(opened.fd(), path)) return *key;
    key_failed("open", path, ENOENT);
  }
  throw InternalError("the last folder for a key was not tried");
}

}  // namespace trireme::wire
