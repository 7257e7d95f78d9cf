#include "trireme/telemetry/status_page.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <new>

#include "trireme/base/error.h"
#include "trireme/base/file_descriptor.h"
#include "trireme/telemetry/rank_usage.h"

namespace trireme::telemetry {
namespace {

constexpr std::uint64_t kMagic = 0x32656d6572697274;  // "trireme2", little endian
constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kTextWords = 26;
constexpr std::size_t kPathWords = 64;
constexpr int kReadAndWrite = PROT_READ | PROT_WRITE;

// The coarse clock is read without a system call even where the fine one is not.
std::int64_t coarse_now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

/// Text under a sequence lock. The words are atomic and ordered by release and acquire, not by fences, so
/// that ThreadSanitizer can check it.
template <std::size_t kWords>
class SharedText {
 public:
  static constexpr std::size_t kTextBytes = kWords * 8 - 1;  // a zero byte ends the text

  void write(std::string_view text) {
    text = text.substr(0, kTextBytes);
    // Odd during a write, even if the previous writer died in a write.
    const std::uint64_t odd = (sequence_.load(std::memory_order_relaxed) + 1) | 1;
    sequence_.store(odd, std::memory_order_relaxed);
    for (std::size_t word = 0; word <= text.size() / 8; ++word) {
      const auto part = text.substr(word * 8, 8);
      std::uint64_t value = 0;
      std::memcpy(&value, part.data(), part.size());
      words_[word].store(value, std::memory_order_release);
    }
    sequence_.store(odd + 1, std::memory_order_release);
  }

  std::string read() const {
    std::array<char, kWords * 8> copy{};
    // A writer that was preempted in a write continues. One that was killed in it does not, so a reader stops
    // waiting.
    constexpr std::int64_t kLongestWait_ns = 200'000'000;
    for (const auto give_up_ns = coarse_now_ns() + kLongestWait_ns; !read_whole(copy);) {
      if (coarse_now_ns() > give_up_ns) break;
      ::sched_yield();
    }
    return {copy.data(), ::strnlen(copy.data(), kTextBytes)};
  }

 private:
  bool read_whole(std::array<char, kWords * 8>& copy) const {
    const std::uint64_t before = sequence_.load(std::memory_order_acquire);
    for (std::size_t word = 0; word < kWords; ++word) {
      const std::uint64_t value = words_[word].load(std::memory_order_acquire);
      std::memcpy(copy.data() + word * 8, &value, 8);
    }
    return before % 2 == 0 && sequence_.load(std::memory_order_relaxed) == before;
  }

  std::atomic<std::uint64_t> sequence_{0};
  std::array<std::atomic<std::uint64_t>, kWords> words_{};
};

}  // namespace

struct StatusPage::Page {
  std::uint64_t magic = kMagic;
  std::atomic<std::int64_t> rank{-1};
  std::atomic<std::uint64_t> step{0};
  std::atomic<std::int64_t> updated_ns{0};
  std::atomic<std::int64_t> asked_generation{0};
  SharedText<kTextWords> action;
  SharedText<kTextWords> operation;
  SharedText<kTextWords> own_work;
  SharedText<kPathWords> run;
  RankUsage usage;

  void touch() { updated_ns.store(coarse_now_ns(), std::memory_order_relaxed); }
};

std::shared_ptr<StatusPage> StatusPage::map(int descriptor, int protection) {
  static_assert(sizeof(Page) <= kPageBytes && std::atomic<std::uint64_t>::is_always_lock_free);
  const int flags = descriptor < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
  void* memory = ::mmap(nullptr, kPageBytes, protection, flags, descriptor, 0);
  if (memory == MAP_FAILED) return nullptr;
  return std::shared_ptr<StatusPage>(new StatusPage(static_cast<Page*>(memory)));
}

std::shared_ptr<StatusPage> StatusPage::make_private() {
  auto page = map(-1, kReadAndWrite);
  if (!page) throw InternalError(text("no memory for a status page: ", std::strerror(errno)));
  new (page->page_) Page;
  return page;
}

std::shared_ptr<StatusPage> StatusPage::create(int* descriptor) {
  const int fd = ::memfd_create("trireme-status", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  // Sealed: a read beyond the end of a page that has shrunk would kill the reader.
  if (fd >= 0 && ::ftruncate(fd, kPageBytes) == 0 && ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0) {
    if (auto page = map(fd, kReadAndWrite)) {
      new (page->page_) Page;
      *descriptor = fd;
      return page;
    }
  }
  const int error = errno;
  if (fd >= 0) ::close(fd);
  throw InternalError(text("cannot create a status page in memory: ", std::strerror(error)));
}

std::shared_ptr<StatusPage> StatusPage::from_environment() {
  const char* value = std::getenv("TRIREME_STATUS_FD");
  if (value == nullptr) return make_visible();
  int fd = -1;
  const char* end = value + std::strlen(value);
  const auto parsed = std::from_chars(value, end, fd);
  struct stat about {};
  // A program that a rank has started may inherit the variable without the descriptor. Then the number may be
  // any file.
  const bool plausible = parsed.ec == std::errc() && parsed.ptr == end && fd >= 0 &&
                         ::fstat(fd, &about) == 0 && about.st_size == static_cast<off_t>(kPageBytes);
  if (!plausible) return make_visible();
  auto page = map(fd, kReadAndWrite);
  return page && page->page_->magic == kMagic ? page : make_visible();
}

/// Private if a sandbox has no memory files.
std::shared_ptr<StatusPage> StatusPage::make_visible() {
  try {
    int descriptor = -1;
    auto page = create(&descriptor);
    page->kept_descriptor_ = descriptor;
    return page;
  } catch (const InternalError&) {
    return make_private();
  }
}

std::shared_ptr<const StatusPage> StatusPage::open_of(int pid, int descriptor, std::uint64_t* identity) {
  const FileDescriptor file(
      ::open(text("/proc/", pid, "/fd/", descriptor).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat about {};
  if (!file.is_open() || ::fstat(file.get(), &about) != 0 || about.st_size != static_cast<off_t>(kPageBytes))
    return nullptr;
  const int seals = ::fcntl(file.get(), F_GET_SEALS);  // -1: not a memory file
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return nullptr;
  *identity = about.st_ino;
  auto page = map(file.get(), PROT_READ);
  return page && page->page_->magic == kMagic ? page : nullptr;
}

StatusPage::~StatusPage() {
  ::munmap(page_, kPageBytes);
  if (kept_descriptor_ >= 0) ::close(kept_descriptor_);
}

void StatusPage::set_rank(int rank) {
  page_->rank.store(rank, std::memory_order_relaxed);
  page_->touch();
}

void StatusPage::set_step(std::uint64_t step) {
  page_->step.store(step, std::memory_order_relaxed);
  page_->touch();
}

void StatusPage::set_action(std::string_view action) {
  page_->action.write(action);
  page_->touch();
}

void StatusPage::set_operation(std::string_view operation) {
  page_->operation.write(operation);
  page_->touch();
}

void StatusPage::set_own_work(std::string_view work) {
  page_->own_work.write(work);
  page_->touch();
}

void StatusPage::set_run(std::string_view folder) { page_->run.write(folder); }

void StatusPage::ask_for_generation(int generation) {
  page_->asked_generation.store(generation, std::memory_order_relaxed);
}

int StatusPage::asked_generation() const {
  return static_cast<int>(page_->asked_generation.load(std::memory_order_relaxed));
}

RankUsage& StatusPage::usage() { return page_->usage; }
const RankUsage& StatusPage::usage() const { return page_->usage; }

Status StatusPage::read() const {
  return {.rank = static_cast<int>(page_->rank.load(std::memory_order_relaxed)),
          .step = page_->step.load(std::memory_order_relaxed),
          .action = page_->action.read(),
          .operation = page_->operation.read(),
          .own_work = page_->own_work.read(),
          .run = page_->run.read(),
          .updated_s = static_cast<double>(page_->updated_ns.load(std::memory_order_relaxed)) * 1e-9};
}

OwnWork::OwnWork(StatusPage& page, std::string_view what) : page_(page), around_(page.read().own_work) {
  page_.set_own_work(what);
}

OwnWork::~OwnWork() { page_.set_own_work(around_); }

}  // namespace trireme::telemetry
