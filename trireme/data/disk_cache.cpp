#include "trireme/data/disk_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <list>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/open_file.h"
#include "trireme/base/random.h"
#include "trireme/data/internal/file_lock.h"
#include "trireme/data/loading_report.h"

namespace trireme::data {
namespace {
namespace fs = std::filesystem;

constexpr std::string_view kBlockMagic = "trireme block 1\n";
constexpr double kFolderWait_s = 10;
constexpr std::uint64_t kFetchLocks = 64;

/// The complete identity of a block. File names are too short for it.
std::string block_key(const ByteSource& source, std::int64_t number) {
  return text(source.name(), '\n', source.version(), '\n', number, '\n');
}

std::string block_header(const std::string& key, std::string_view content) {
  const XXH64_hash_t sum =
      XXH3_64bits_withSeed(content.data(), content.size(), XXH3_64bits(key.data(), key.size()));
  return text(kBlockMagic, std::hex, sum, ' ', std::dec, content.size(), '\n', key);
}

/// A temporary file. The destructor deletes it unless it was renamed.
class UnfinishedFile {
 public:
  explicit UnfinishedFile(fs::path path) : path_(std::move(path)), file_(create_file(path_)) {}
  ~UnfinishedFile() {
    if (!finished_) ::unlink(path_.c_str());
  }
  UnfinishedFile(const UnfinishedFile&) = delete;
  UnfinishedFile& operator=(const UnfinishedFile&) = delete;

  bool write(std::string_view bytes) const { return file_.is_open() && file_.write(bytes); }
  bool rename_to(const fs::path& name) { return finished_ = ::rename(path_.c_str(), name.c_str()) == 0; }

 private:
  const fs::path path_;
  const FileDescriptor file_;
  bool finished_ = false;
};

struct KeptBlock {
  fs::path path;
  std::int64_t bytes = 0;
  timespec used = {};
  bool older_than(const KeptBlock& other) const {
    return std::pair(used.tv_sec, used.tv_nsec) < std::pair(other.used.tv_sec, other.used.tv_nsec);
  }
};

/// The most recently used blocks: small samples in one block read it once. Thread-safe.
class RecentBlocks {
 public:
  explicit RecentBlocks(std::int64_t most_bytes) : max_bytes_(most_bytes) {}

  std::shared_ptr<const std::string> find(const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(blocks_, key, &Block::key);
    if (found == blocks_.end()) return nullptr;
    blocks_.splice(blocks_.begin(), blocks_, found);
    return found->content;
  }

  std::shared_ptr<const std::string> keep(const std::string& key, std::string content) {
    auto block = std::make_shared<const std::string>(std::move(content));
    const std::lock_guard lock(mutex_);
    blocks_.push_front({key, block});
    bytes_ += std::ssize(*block);
    while (bytes_ > max_bytes_ && !blocks_.empty()) {
      bytes_ -= std::ssize(*blocks_.back().content);
      blocks_.pop_back();
    }
    return block;
  }

 private:
  struct Block {
    std::string key;
    std::shared_ptr<const std::string> content;
  };

  const std::int64_t max_bytes_;
  std::mutex mutex_;
  std::list<Block> blocks_;  ///< under the mutex, as all members below; most recently used first
  std::int64_t bytes_ = 0;
};

}  // namespace

struct DiskCache::State {
  State(const DiskCacheOptions& with, const Log& where)
      : folder(with.folder / "blocks"),
        most_bytes(with.most_bytes),
        wait_s(with.wait_s),
        log(where),
        recent(with.memory_bytes) {}

  fs::path path_of(const std::string& key) const {
    return folder / text(std::hex, XXH3_64bits(key.data(), key.size()), ".block");
  }

  /// nullopt: the block is missing or damaged.
  std::optional<std::string> find(const std::string& key, std::int64_t size) const {
    const fs::path path = path_of(key);
    std::error_code ignored;
    if (!fs::exists(path, ignored)) return std::nullopt;
    std::string file;
    try {
      file = read_file(path);
    } catch (const DataError&) {
      return std::nullopt;  // another process has just removed it
    }
    const auto begin = file.size() - std::min(file.size(), static_cast<std::size_t>(size));
    const std::string_view content = std::string_view(file).substr(begin);
    if (std::string_view(file).substr(0, begin) != block_header(key, content)) {
      fs::remove(path, ignored);
      return std::nullopt;
    }
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    const timespec times[2] = {now, now};
    ::utimensat(AT_FDCWD, path.c_str(), times, 0);  // fails in a read-only folder: the eviction order stays
    return std::string(content);
  }

  void keep(const std::string& key, const std::string& content) {
    if (given_up) return;
    FileLock lock(folder / "total", kFolderWait_s);
    if (lock.fd() < 0) return give_up(lock.error());
    if (!lock.held()) return;  // the holder of the lock hangs; the block is used without being cached
    const fs::path path = path_of(key);
    std::error_code ignored;
    if (fs::exists(path, ignored)) return;
    const std::string header = block_header(key, content);
    const auto bytes = static_cast<std::int64_t>(header.size() + content.size());
    // Recorded before the write. A process that dies in between leaves a total that is too large. The next
    // count corrects it.
    std::int64_t total = noted(lock.fd());
    if (total < 0 || total + bytes > most_bytes) total = make_room(bytes);
    if (!note(lock.fd(), total + bytes)) return give_up(errno);
    UnfinishedFile file(folder / "unfinished");
    if (!file.write(header) || !file.write(content) || !file.rename_to(path)) give_up(errno);
  }

  /// If `more` bytes do not fit, evicts the oldest blocks until the total with them is at most 90 % of the
  /// limit. Returns the total without `more`. Under the lock.
  std::int64_t make_room(std::int64_t more) const {
    std::vector<KeptBlock> blocks;
    std::int64_t total = 0;
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
      struct stat status {};
      if (entry->path().extension() != ".block" || ::stat(entry->path().c_str(), &status) != 0) continue;
      blocks.push_back({entry->path(), status.st_size, status.st_mtim});
      total += status.st_size;
    }
    if (total + more <= most_bytes) return total;
    std::ranges::sort(blocks,
                      [](const KeptBlock& one, const KeptBlock& other) { return one.older_than(other); });
    for (const KeptBlock& block : blocks) {
      if (total + more <= most_bytes / 10 * 9) break;
      if (fs::remove(block.path, error)) total -= block.bytes;
    }
    return total;
  }

  /// The recorded total; -1: there is none yet.
  static std::int64_t noted(int fd) {
    char digits[32];
    const ssize_t size = ::pread(fd, digits, sizeof(digits), 0);
    std::int64_t total = -1;
    const auto [end, error] = std::from_chars(digits, digits + std::max<ssize_t>(size, 0), total);
    return error == std::errc() && total >= 0 && end != digits + size && *end == '\n' ? total : -1;
  }

  static bool note(int fd, std::int64_t total) {
    std::string line = std::to_string(total) + '\n';
    line.resize(24, ' ');
    return ::pwrite(fd, line.data(), line.size(), 0) == static_cast<ssize_t>(line.size());
  }

  fs::path lock_of(const std::string& key) const {
    return folder / text("fetch-", Random::key_of(key) % kFetchLocks);
  }

  /// The blocks after a block, with the locks to fetch them.
  struct Followers {
    std::vector<std::string> keys;
    std::list<FileLock> locks;
  };
  /// Stops at the first block that is cached or that another reader fetches.
  Followers followers(const ByteSource& source, std::int64_t number, std::int64_t most) const {
    Followers found;
    while (std::ssize(found.keys) < most) {
      const std::int64_t next = number + std::ssize(found.keys) + 1;
      if (next * kBlockBytes >= source.size()) break;
      const std::string key = block_key(source, next);
      std::error_code ignored;
      if (!found.locks.emplace_back(lock_of(key), 0).held() || fs::exists(path_of(key), ignored)) break;
      found.keys.push_back(key);
    }
    return found;
  }

  void give_up(int error) {
    if (given_up.exchange(true)) return;
    log.warning("cannot keep blocks in ", folder.string(), ": ", problem_of_open(error),
                "; the run continues, and reads missing blocks from the server each time");
  }

  const fs::path folder;
  const std::int64_t most_bytes;
  const double wait_s;
  const Log log;
  std::atomic<bool> given_up = false;
  RecentBlocks recent;
};

DiskCache::DiskCache(const DiskCacheOptions& options, const Log& log)
    : state_(std::make_unique<State>(options, log)) {
  require(options.most_bytes >= 16 * kBlockBytes, "a cache of ", options.most_bytes,
          " bytes is too small; it holds 16 blocks of ", kBlockBytes, " bytes at least");
  std::error_code error;
  fs::create_directories(state_->folder, error);
  if (error && !fs::is_directory(state_->folder)) state_->give_up(error.value());
}

DiskCache::~DiskCache() = default;

std::shared_ptr<const std::string> DiskCache::block(const ByteSource& source, std::int64_t number) {
  return block_of_several(source, number, 1).content;
}

DiskCache::Block DiskCache::block_of_several(const ByteSource& source, std::int64_t number,
                                             std::int64_t at_once) {
  const std::int64_t offset = number * kBlockBytes, size = std::min(kBlockBytes, source.size() - offset);
  const std::string key = block_key(source, number);
  const StageScope reading(Stage::kRead);
  const auto hit = [&](std::shared_ptr<const std::string> block) -> Block {
    count_cache(true);
    return {.content = std::move(block)};
  };
  if (auto found = state_->recent.find(key)) return hit(std::move(found));
  if (auto found = state_->find(key, size)) return hit(state_->recent.keep(key, *std::move(found)));
  count_cache(false);
  if (state_->given_up)
    return {.content = state_->recent.keep(key, read_text(source, offset, size)), .fetched = 1};
  const FileLock fetching(state_->lock_of(key), state_->wait_s);
  if (auto found = state_->find(key, size)) return {.content = state_->recent.keep(key, *std::move(found))};
  const State::Followers followers = state_->followers(source, number, at_once - 1);
  const auto behind = static_cast<std::int64_t>(followers.keys.size());
  const std::string content =
      read_text(source, offset, std::min((1 + behind) * kBlockBytes, source.size() - offset));
  for (std::int64_t i = behind; i > 0; --i) {
    const std::string& follower = followers.keys[static_cast<std::size_t>(i - 1)];
    std::string part = content.substr(static_cast<std::size_t>(i * kBlockBytes), kBlockBytes);
    state_->keep(follower, part);
    state_->recent.keep(follower, std::move(part));
  }
  std::string first = content.substr(0, static_cast<std::size_t>(size));
  state_->keep(key, first);
  return {.content = state_->recent.keep(key, std::move(first)), .fetched = 1 + behind};
}

namespace {

class CachedBytes : public ByteSource {
 public:
  CachedBytes(std::shared_ptr<const ByteSource> source, std::shared_ptr<DiskCache> cache)
      : source_(std::move(source)), cache_(std::move(cache)) {}
  const std::string& name() const override { return source_->name(); }
  std::int64_t size() const override { return source_->size(); }
  const std::string& version() const override { return source_->version(); }
  std::int64_t read_ahead() const override { return DiskCache::kBlockBytes; }

  void read(std::int64_t offset, std::span<std::byte> into) const override {
    check_range(*this, offset, into.size());
    while (!into.empty()) {
      const std::int64_t number = offset / DiskCache::kBlockBytes;
      const auto begin = static_cast<std::size_t>(offset % DiskCache::kBlockBytes);
      const std::int64_t at_once = at_once_from(number);
      const auto [block, fetched] = cache_->block_of_several(*source_, number, at_once);
      if (fetched > 0) remember(number + fetched, at_once);
      const std::size_t size = std::min(into.size(), block->size() - begin);
      std::memcpy(into.data(), block->data() + begin, size);
      into = into.subspan(size);
      offset += static_cast<std::int64_t>(size);
    }
  }

 private:
  /// Blocks to read in one request on a cache miss. Sequential reads double it.
  std::int64_t at_once_from(std::int64_t number) const {
    const std::lock_guard lock(mutex_);
    return number == behind_ ? std::min(2 * at_once_, DiskCache::kMaxAtOnce) : 1;
  }
  void remember(std::int64_t behind, std::int64_t at_once) const {
    const std::lock_guard lock(mutex_);
    behind_ = behind;
    at_once_ = at_once;
  }

  std::shared_ptr<const ByteSource> source_;
  std::shared_ptr<DiskCache> cache_;
  mutable std::mutex mutex_;
  mutable std::int64_t behind_ = -1, at_once_ = 1;  ///< end and limit of the last fetch; under the mutex
};

}  // namespace

std::shared_ptr<const ByteSource> cached(std::shared_ptr<const ByteSource> source,
                                         std::shared_ptr<DiskCache> cache) {
  return std::make_shared<CachedBytes>(std::move(source), std::move(cache));
}

}  // namespace trireme::data
