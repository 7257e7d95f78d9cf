#include "trireme/autopsy/internal/blocked_call.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>

#include "trireme/autopsy/internal/connections.h"
#include "trireme/base/file_descriptor.h"
#include "trireme/base/text.h"

namespace trireme::autopsy {
namespace {

enum class Takes { kNothing, kDescriptor, kPath, kPathAt, kPollList };

struct Call {
  long number;
  const char* name;
  Takes takes;
};

constexpr std::array kCalls = {
    Call{SYS_read, "read", Takes::kDescriptor},
    Call{SYS_write, "write", Takes::kDescriptor},
    Call{SYS_pread64, "pread", Takes::kDescriptor},
    Call{SYS_pwrite64, "pwrite", Takes::kDescriptor},
    Call{SYS_readv, "readv", Takes::kDescriptor},
    Call{SYS_writev, "writev", Takes::kDescriptor},
    Call{SYS_preadv, "preadv", Takes::kDescriptor},
    Call{SYS_pwritev, "pwritev", Takes::kDescriptor},
    Call{SYS_fsync, "fsync", Takes::kDescriptor},
    Call{SYS_fdatasync, "fdatasync", Takes::kDescriptor},
    Call{SYS_ftruncate, "ftruncate", Takes::kDescriptor},
    Call{SYS_fallocate, "fallocate", Takes::kDescriptor},
    Call{SYS_flock, "flock", Takes::kDescriptor},
    Call{SYS_close, "close", Takes::kDescriptor},
    Call{SYS_fstat, "fstat", Takes::kDescriptor},
    Call{SYS_getdents64, "getdents", Takes::kDescriptor},
    Call{SYS_recvfrom, "recv", Takes::kDescriptor},
    Call{SYS_recvmsg, "recvmsg", Takes::kDescriptor},
    Call{SYS_sendto, "send", Takes::kDescriptor},
    Call{SYS_sendmsg, "sendmsg", Takes::kDescriptor},
    Call{SYS_connect, "connect", Takes::kDescriptor},
    Call{SYS_openat, "openat", Takes::kPathAt},
    Call{SYS_newfstatat, "stat", Takes::kPathAt},
    Call{SYS_renameat, "rename", Takes::kPathAt},
    Call{SYS_mkdirat, "mkdir", Takes::kPathAt},
    Call{SYS_unlinkat, "unlink", Takes::kPathAt},
    Call{SYS_ppoll, "poll", Takes::kPollList},
    Call{SYS_futex, "futex", Takes::kNothing},
    Call{SYS_clock_nanosleep, "clock_nanosleep", Takes::kNothing},
    Call{SYS_nanosleep, "nanosleep", Takes::kNothing},
    Call{SYS_wait4, "wait4", Takes::kNothing},
    Call{SYS_pselect6, "select", Takes::kNothing},
    Call{SYS_epoll_pwait, "epoll_wait", Takes::kNothing},
#if defined(__x86_64__)
    Call{SYS_open, "open", Takes::kPath},
    Call{SYS_stat, "stat", Takes::kPath},
    Call{SYS_rename, "rename", Takes::kPath},
    Call{SYS_mkdir, "mkdir", Takes::kPath},
    Call{SYS_unlink, "unlink", Takes::kPath},
    Call{SYS_poll, "poll", Takes::kPollList},
    Call{SYS_select, "select", Takes::kNothing},
    Call{SYS_pause, "pause", Takes::kNothing},
    Call{SYS_epoll_wait, "epoll_wait", Takes::kNothing},
#endif
};

constexpr unsigned long kPage = 4096;

/// Whether the page is in memory. Reading another page would wait for its disk.
bool is_in_memory(int pid, unsigned long address) {
  constexpr std::uint64_t kPresent = std::uint64_t{1} << 63;
  static const auto page = static_cast<unsigned long>(::sysconf(_SC_PAGESIZE));
  const FileDescriptor map(::open(text("/proc/", pid, "/pagemap").c_str(), O_RDONLY | O_CLOEXEC));
  std::uint64_t entry = 0;
  const auto at = static_cast<off_t>(address / page * sizeof entry);
  return map.is_open() && ::pread(map.get(), &entry, sizeof entry, at) == sizeof entry &&
         (entry & kPresent) != 0;
}

/// Bytes of another process's memory. Fewer at the end of its page; empty if it cannot be read.
std::string memory_of(int pid, unsigned long address, std::size_t bytes) {
  bytes = std::min(bytes, kPage - address % kPage);  // the next page may not exist
  if (!is_in_memory(pid, address)) return {};
  std::string content(bytes, '\0');
  const iovec here{content.data(), bytes};
  const iovec there{reinterpret_cast<void*>(address), bytes};
  const ssize_t got = ::process_vm_readv(pid, &here, 1, &there, 1, 0);
  content.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return content;
}

std::string text_in(int pid, unsigned long address) {
  const std::string content = memory_of(pid, address, kPage);
  return content.substr(0, content.find('\0'));
}

void describe_descriptor(BlockedThread& thread, int pid, int descriptor) {
  std::array<char, 4096> link{};
  const std::string path = text("/proc/", pid, "/fd/", descriptor);
  const ssize_t length = ::readlink(path.c_str(), link.data(), link.size() - 1);
  if (length <= 0) return;
  const std::string target(link.data(), static_cast<std::size_t>(length));
  if (target.starts_with("socket:[")) {
    const std::string peer = peer_of_socket(pid, std::strtoul(target.c_str() + 8, nullptr, 10));
    thread.kind = "socket";
    thread.target = peer.empty() ? "a socket" : "tcp to " + peer;
  } else if (target.starts_with("pipe:[")) {
    thread.kind = "pipe";
    thread.target = "a pipe";
  } else if (target.starts_with("/")) {
    const bool is_special = target.starts_with("/dev/") && !target.starts_with("/dev/shm/");
    thread.kind = is_special ? "" : "file";
    thread.target = target;
  }
}

/// Uses only data in the kernel's memory, because a file server may not answer.
bool is_fifo(int pid, int descriptor) {
  struct statx about {};
  const std::string path = text("/proc/", pid, "/fd/", descriptor);
  return ::statx(AT_FDCWD, path.c_str(), AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, STATX_TYPE, &about) == 0 &&
         S_ISFIFO(about.stx_mode);
}

void describe_poll(BlockedThread& thread, int pid, unsigned long list, unsigned long count) {
  constexpr unsigned long kMost = 8;
  const std::string content = memory_of(pid, list, std::min(count, kMost) * sizeof(pollfd));
  for (std::size_t at = 0; at + sizeof(pollfd) <= content.size() && thread.kind.empty();
       at += sizeof(pollfd)) {
    pollfd entry{};
    std::copy_n(content.data() + at, sizeof entry, reinterpret_cast<char*>(&entry));
    BlockedThread candidate;
    if (entry.fd >= 0) describe_descriptor(candidate, pid, entry.fd);
    if (candidate.kind != "socket" || candidate.target == "a socket") continue;
    thread.kind = candidate.kind;
    thread.target = candidate.target;
  }
}

}  // namespace

BlockedThread describe_call(int pid, char state, const std::string& line) {
  BlockedThread thread;
  std::istringstream words(line);
  long number = -1;
  if (!(words >> number)) return thread;  // "running"
  std::array<unsigned long, 6> arguments{};
  for (unsigned long& argument : arguments) {
    std::string word;
    words >> word;
    argument = std::strtoul(word.c_str(), nullptr, 16);
  }
  const auto call = std::ranges::find(kCalls, number, &Call::number);
  if (call == kCalls.end()) {
    if (number >= 0) thread.call = text("system call ", number);
    return thread;
  }
  thread.call = call->name;
  switch (call->takes) {
    case Takes::kDescriptor: {
      const int descriptor = static_cast<int>(arguments[0]);
      describe_descriptor(thread, pid, descriptor);
      // A thread that waits for a disk does not sleep interruptibly. One that waits for a file server in a
      // process (FUSE) does.
      if (thread.kind == "file" && state == 'S' && is_fifo(pid, descriptor)) thread.kind = "pipe";
      break;
    }
    case Takes::kPath:
    case Takes::kPathAt: {
      thread.target = text_in(pid, arguments[call->takes == Takes::kPath ? 0 : 1]);
      if (!thread.target.empty()) thread.kind = "file";
      break;
    }
    case Takes::kPollList:
      describe_poll(thread, pid, arguments[0], arguments[1]);
      break;
    case Takes::kNothing:
      break;
  }
  return thread;
}

}  // namespace trireme::autopsy
