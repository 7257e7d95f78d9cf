#include "trireme/wire/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>
#include <vector>

#include "trireme/base/available_memory.h"
#include "trireme/base/error.h"
#include "trireme/base/rounding.h"

namespace trireme::wire {
namespace {

constexpr const char* kInProcess = "in-process:";
constexpr const char* kMemoryFile = "/memfd:trireme";

std::byte* map(std::size_t bytes, int descriptor) {
  const int flags = descriptor < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED | MAP_POPULATE;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, descriptor, 0);
  if (memory == MAP_FAILED)
    throw CommError(text("cannot map ", human_bytes(bytes), " of memory: ", std::strerror(errno)));
  return static_cast<std::byte*>(memory);
}

constexpr std::uint64_t kMaxNumber = std::numeric_limits<int>::max();

/// "1:2:3" as numbers; empty for any other text.
std::vector<std::uint64_t> numbers_of(const std::string& address) {
  std::vector<std::uint64_t> result;
  for (const auto& part : split(address, ':')) {
    std::uint64_t number = 0;
    const char* end = part.data() + part.size();
    const auto [at, error] = std::from_chars(part.data(), end, number);
    if (error != std::errc() || at != end) return {};
    result.push_back(number);
  }
  return result;
}

}  // namespace

std::shared_ptr<SharedMemory> SharedMemory::create(std::size_t bytes) {
  bytes = std::max<std::size_t>(bytes, 1);
  const std::uint64_t available = available_memory().bytes;
  if (bytes > available)
    throw CommError(text("cannot reserve ", human_bytes(bytes), " (", bytes,
                         " bytes) of shared memory: only ", human_bytes(available),
                         " are available; free memory or raise the memory limit of this container"));
  FileDescriptor descriptor(::memfd_create("trireme", MFD_CLOEXEC));
  if (!descriptor.is_open())
    throw CommError(text("cannot make a shared memory file (memfd_create): ", std::strerror(errno)));
  int failure = 0;
  do {
    failure = ::fallocate(descriptor.get(), 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  } while (failure == EINTR);
  if (failure != 0)
    throw CommError(text("cannot reserve ", human_bytes(bytes), " (", bytes,
                         " bytes) of shared memory: ", std::strerror(failure),
                         "; free memory or raise the memory limit of this container"));
  std::byte* data = map(bytes, descriptor.get());
  return std::shared_ptr<SharedMemory>(new SharedMemory(data, bytes, std::move(descriptor)));
}

std::shared_ptr<SharedMemory> SharedMemory::create_in_process(std::size_t bytes) {
  bytes = std::max<std::size_t>(bytes, 1);
  return std::shared_ptr<SharedMemory>(new SharedMemory(map(bytes, -1), bytes, {}));
}

std::shared_ptr<SharedMemory> SharedMemory::attach(int pid, int descriptor, std::size_t bytes) {
  const std::string path = text("/proc/", pid, "/fd/", descriptor);
  const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.is_open())
    throw CommError(
        text("cannot open the shared memory of process ", pid, " (", path, "): ", std::strerror(errno)));
  // A process that can write an address into the store must not make this process write into an arbitrary
  // file.
  std::error_code unreadable;
  const auto target = std::filesystem::read_symlink(path, unreadable).string();
  if (unreadable || !target.starts_with(kMemoryFile)) {
    throw CommError(text("the shared memory of process ", pid, " (", path, ") is '", target,
                         "' and no memory of trireme: it belongs to another process of that number"));
  }
  struct stat found {};
  if (::fstat(file.get(), &found) != 0 || static_cast<std::size_t>(found.st_size) != bytes)
    throw CommError(text("the shared memory of process ", pid, " (", path, ") has ", found.st_size,
                         " bytes instead of ", bytes, ": it belongs to another process of that number"));
  return std::shared_ptr<SharedMemory>(new SharedMemory(map(bytes, file.get()), bytes, {}));
}

std::shared_ptr<SharedMemory> SharedMemory::attach(const std::string& address) {
  const auto parts = numbers_of(address);
  if (parts.size() != 3 || parts[0] > kMaxNumber || parts[1] > kMaxNumber) {
    throw CommError(text("not an address of shared memory: '", address, "'"));
  }
  return attach(static_cast<int>(parts[0]), static_cast<int>(parts[1]), parts[2]);
}

std::shared_ptr<SharedMemory> SharedMemory::attach_in_process(const std::string& address) {
  const bool ours = address.starts_with(kInProcess);
  const auto parts =
      ours ? numbers_of(address.substr(std::strlen(kInProcess))) : std::vector<std::uint64_t>();
  if (parts.size() != 2 || parts[0] != static_cast<std::uint64_t>(::getpid())) {
    throw CommError(text("'", address, "' is no memory of this process (", ::getpid(),
                         "): backend threads connects ranks that are threads of one process"));
  }
  return reinterpret_cast<SharedMemory*>(static_cast<std::uintptr_t>(parts[1]))->shared_from_this();
}

void SharedMemory::make_private(std::size_t offset, std::size_t bytes) {
  const std::size_t begin = offset / kPageBytes * kPageBytes;
  const std::size_t end = round_up(offset + bytes, kPageBytes);
  void* at = data_ + begin;
  if (::mmap(at, end - begin, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, descriptor(),
             static_cast<off_t>(begin)) != at)
    throw CommError(text("cannot map ", human_bytes(end - begin), " of memory: ", std::strerror(errno)));
  // A private page shows other processes' writes until its first write here, which makes the kernel copy it.
  for (std::size_t page = begin; page < end; page += kPageBytes)
    __atomic_fetch_or(reinterpret_cast<volatile unsigned char*>(data_ + page), 0, __ATOMIC_RELAXED);
}

SharedMemory::~SharedMemory() { ::munmap(data_, bytes_); }

std::string SharedMemory::address() const {
  if (!descriptor_.is_open())
    return text(kInProcess, ::getpid(), ":", reinterpret_cast<std::uintptr_t>(this));
  return text(::getpid(), ":", descriptor(), ":", bytes_);
}

}  // namespace trireme::wire
