#include "trireme/data/disk_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <thread>

#include "tests/support/scratch_files.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/data/internal/file_lock.h"
#include "trireme/data/loading_report.h"

namespace trireme::data {
namespace {
namespace fs = std::filesystem;

using testing::HasSubstr;

constexpr std::int64_t kBlock = DiskCache::kBlockBytes;

/// A remote source that counts reads. Each byte encodes its block.
class Far : public ByteSource {
 public:
  explicit Far(std::int64_t size, std::string version = "1") : size_(size), version_(std::move(version)) {}
  const std::string& name() const override { return name_; }
  std::int64_t size() const override { return size_; }
  const std::string& version() const override { return version_; }
  void read(std::int64_t offset, std::span<std::byte> into) const override {
    check_range(*this, offset, into.size());
    ++num_reads;
    for (std::size_t i = 0; i < into.size(); ++i)
      into[i] = static_cast<std::byte>((offset + static_cast<std::int64_t>(i)) / kBlock + version_[0]);
  }
  mutable std::atomic<int> num_reads = 0;

 private:
  std::int64_t size_;
  std::string name_ = "far://away", version_;
};

class CacheOnDisk : public testing::Test {
 protected:
  std::shared_ptr<DiskCache> cache(std::int64_t max_blocks = 100) const {
    return std::make_shared<DiskCache>(
        DiskCacheOptions{.folder = folder_ / "cache", .most_bytes = max_blocks * kBlock, .memory_bytes = 0},
        Log());
  }
  std::vector<fs::path> blocks() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(folder_ / "cache" / "blocks")) {
      if (entry.path().extension() == ".block") found.push_back(entry.path());
    }
    return found;
  }
  std::int64_t bytes() const {
    std::int64_t total = 0;
    for (const fs::path& path : blocks()) total += static_cast<std::int64_t>(fs::file_size(path));
    return total;
  }
  static char of(std::int64_t block, const Far& far) { return static_cast<char>(block + far.version()[0]); }
  const test::TemporaryFolder folder_;
};

TEST_F(CacheOnDisk, SecondReadIsLocal) {
  const auto far = std::make_shared<Far>(3 * kBlock + 7);
  EXPECT_EQ(read_text(*cached(far, cache()), kBlock - 2, 4),
            std::string(2, of(0, *far)) + std::string(2, of(1, *far)));
  EXPECT_EQ(far->num_reads, 2);
  const auto again = cached(far, cache());
  EXPECT_EQ(read_text(*again, 0, 2 * kBlock).size(), static_cast<std::size_t>(2 * kBlock));
  EXPECT_EQ(far->num_reads, 2);
  EXPECT_EQ(read_text(*again, 3 * kBlock, 7), std::string(7, of(3, *far)));
  EXPECT_EQ(read_text(*again, 3 * kBlock + 5, 2), std::string(2, of(3, *far)));
  EXPECT_EQ(far->num_reads, 3);
  EXPECT_THROW(read_text(*again, 3 * kBlock, 8), DataError);
}

TEST_F(CacheOnDisk, SequentialReaderRequestsGrowingRanges) {
  const auto far = std::make_shared<Far>(30 * kBlock + 5);
  const auto source = cached(far, cache());
  for (std::int64_t block = 0; block <= 30; ++block) {
    const std::int64_t size = block == 30 ? 5 : 9;
    EXPECT_EQ(read_text(*source, block * kBlock, size),
              std::string(static_cast<std::size_t>(size), of(block, *far)));
  }
  EXPECT_EQ(far->num_reads, 9);  // 1, 2, and seven times 4
  EXPECT_EQ(blocks().size(), 31U);
}

TEST_F(CacheOnDisk, RandomReaderRequestsOneBlock) {
  const auto far = std::make_shared<Far>(40 * kBlock);
  const auto source = cached(far, cache());
  for (std::int64_t block = 39; block >= 0; block -= 3) read_text(*source, block * kBlock, 9);
  EXPECT_EQ(far->num_reads, 14);
  EXPECT_EQ(blocks().size(), 14U);
}

TEST_F(CacheOnDisk, ReadStopsAtCachedBlock) {
  const auto far = std::make_shared<Far>(8 * kBlock);
  const auto source = cached(far, cache());
  read_text(*source, 2 * kBlock, 1);
  read_text(*source, 0, 1);
  EXPECT_EQ(read_text(*source, kBlock, kBlock), std::string(kBlock, of(1, *far)));
  EXPECT_EQ(blocks().size(), 3U);
  EXPECT_EQ(read_text(*source, 2 * kBlock, kBlock), std::string(kBlock, of(2, *far)));
  EXPECT_EQ(far->num_reads, 3);
}

TEST_F(CacheOnDisk, CountsHitsAndMissesPerReader) {
  LoadingCounts counts;
  {
    const LoadingMeter meter(counts);
    for (int again = 0; again < 3; ++again)
      read_text(*cached(std::make_shared<Far>(2 * kBlock), cache()), 0, kBlock + 1);
  }
  EXPECT_EQ(counts.cache_misses, 2);
  EXPECT_EQ(counts.cache_hits, 4);
  EXPECT_EQ(slowest_stage(counts), "read");
}

TEST_F(CacheOnDisk, KeepsRecentBlocksInMemoryWithinLimit) {
  const auto kept = std::make_shared<DiskCache>(
      DiskCacheOptions{.folder = folder_ / "cache", .memory_bytes = 2 * kBlock}, Log());
  const auto far = std::make_shared<Far>(4 * kBlock);
  const auto block = [&](std::int64_t number) { return kept->block(*far, number); };
  const std::weak_ptr<const std::string> first = block(0), second = block(1);
  fs::remove_all(folder_ / "cache" / "blocks");  // later reads can only come from memory
  EXPECT_EQ((*block(0))[0], of(0, *far));
  EXPECT_EQ((*block(1))[0], of(1, *far));
  block(0);
  EXPECT_EQ(far->num_reads, 2);
  fs::create_directories(folder_ / "cache" / "blocks");
  block(2);
  EXPECT_FALSE(first.expired());
  EXPECT_TRUE(second.expired()) << "it was not used longest";
  block(1);
  EXPECT_EQ(far->num_reads, 4);
}

TEST_F(CacheOnDisk, AnotherVersionIsReadAnew) {
  const auto one = std::make_shared<Far>(kBlock, "a"), other = std::make_shared<Far>(kBlock, "b");
  EXPECT_EQ(read_text(*cached(one, cache()), 0, 1), "a");
  EXPECT_EQ(read_text(*cached(other, cache()), 0, 1), "b");
  EXPECT_EQ(read_text(*cached(one, cache()), 0, 1), "a");
}

TEST_F(CacheOnDisk, ChangedBlockIsReadAnew) {
  const auto far = std::make_shared<Far>(kBlock);
  const std::string right = *cache()->block(*far, 0);
  const fs::path path = blocks().at(0);
  const std::string whole = read_file(path);
  int num_reads = far->num_reads;
  for (const std::size_t place : {std::size_t{0}, std::size_t{20}, whole.size() / 2, whole.size() - 1}) {
    std::string damaged = whole;
    damaged[place] = static_cast<char>(damaged[place] ^ 1);
    std::ofstream(path, std::ios::binary) << damaged;
    EXPECT_TRUE(*cache()->block(*far, 0) == right) << place;
    EXPECT_EQ(far->num_reads, ++num_reads) << place;
  }
  for (const std::size_t kept : {std::size_t{0}, std::size_t{5}, whole.size() - 1}) {
    fs::resize_file(path, kept);
    EXPECT_TRUE(*cache()->block(*far, 0) == right) << kept;
    EXPECT_EQ(far->num_reads, ++num_reads) << kept;
  }
  EXPECT_TRUE(*cache()->block(*far, 0) == right);
  EXPECT_EQ(far->num_reads, num_reads);
}

TEST_F(CacheOnDisk, LimitEvictsLeastRecentlyUsedBlocks) {
  const Far far(100 * kBlock);
  const auto kept = cache(20);
  for (int i = 0; i < 19; ++i) kept->block(far, i);
  EXPECT_EQ(far.num_reads, 19);
  kept->block(far, 0);  // is used again
  EXPECT_EQ(far.num_reads, 19);
  kept->block(far, 19);
  EXPECT_LE(bytes(), 20 * kBlock);
  EXPECT_LT(blocks().size(), 19U);
  kept->block(far, 0);
  EXPECT_EQ(far.num_reads, 20);
  kept->block(far, 1);
  EXPECT_EQ(far.num_reads, 21);
  for (int i = 20; i < 100; ++i) {
    kept->block(far, i);
    ASSERT_LE(bytes(), 20 * kBlock);
  }
}

TEST_F(CacheOnDisk, LimitAppliesToExistingFolder) {
  const Far far(100 * kBlock);
  for (int i = 0; i < 40; ++i) cache(60)->block(far, i);
  std::ofstream(folder_ / "cache" / "blocks" / "total") << "nonsense";
  cache(20)->block(far, 50);
  EXPECT_LE(bytes(), 20 * kBlock);
  fs::remove_all(folder_ / "cache" / "blocks");
  const auto kept = cache(20);
  kept->block(far, 1);
  fs::remove(blocks().at(0));  // a user deletes a block while the cache is in use
  EXPECT_EQ((*kept->block(far, 1))[0], of(1, far));
  EXPECT_THROW(cache(15), InvalidArgument);
}

TEST_F(CacheOnDisk, ConcurrentReadersFetchBlockOnce) {
  const Far far(4 * kBlock);
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&, kept = cache()] {
        for (int block = 0; block < 4; ++block) EXPECT_EQ((*kept->block(far, block))[5], of(block, far));
      });
    }
  }
  EXPECT_EQ(far.num_reads, 4);
}

TEST_F(CacheOnDisk, ProcessesShareFolderWithinItsLimit) {
  const Far far(64 * kBlock);
  std::vector<pid_t> children;
  for (int child = 0; child < 4; ++child) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    const auto kept = cache(16);
    bool right = true;
    for (int i = 0; i < 64; ++i) {
      const int block = (i * 7 + child * 13) % 64;
      const std::string wanted(static_cast<std::size_t>(kBlock), of(block, far));
      right = right && *kept->block(far, block) == wanted;
    }
    ::_exit(right ? 0 : 1);
  }
  for (const pid_t child : children) {
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_LE(bytes(), 16 * kBlock);
  EXPECT_GE(blocks().size(), 13U);
}

TEST_F(CacheOnDisk, FullDiskCostsOneWarning) {
  const Far far(8 * kBlock);
  testing::internal::CaptureStderr();
  {
    const auto kept = cache();
    kept->block(far, 0);
    const test::FileSizeLimit full(static_cast<std::uint64_t>(kBlock / 2));
    for (int i = 0; i < 8; ++i) EXPECT_EQ((*kept->block(far, i))[0], of(i, far));
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("the run continues"));
  EXPECT_EQ(said.find("continues"), said.rfind("continues"));
  EXPECT_EQ(far.num_reads, 8);
  EXPECT_EQ(blocks().size(), 1U);
  for (const auto& entry : fs::directory_iterator(folder_ / "cache" / "blocks"))
    EXPECT_NE(entry.path().filename(), "unfinished");
}

TEST_F(CacheOnDisk, UnwritableFolderCostsOneWarning) {
  const Far far(8 * kBlock);
  cache()->block(far, 0);
  // A folder replaces a file that is written, because permissions do not apply to root.
  fs::remove(folder_ / "cache" / "blocks" / "total");
  fs::create_directory(folder_ / "cache" / "blocks" / "total");
  testing::internal::CaptureStderr();
  const auto kept = cache();
  for (int i = 0; i < 3; ++i) EXPECT_EQ((*kept->block(far, i))[0], of(i, far));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr((folder_ / "cache" / "blocks").string()));
  EXPECT_EQ(said.find("continues"), said.rfind("continues"));
  EXPECT_EQ(far.num_reads, 3);
  std::ofstream(folder_ / "file") << "in the way";
  testing::internal::CaptureStderr();
  DiskCache nowhere({.folder = folder_ / "file"}, Log());
  EXPECT_EQ((*nowhere.block(far, 5))[0], of(5, far));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("the run continues"));
}

TEST_F(CacheOnDisk, StuckRankDelaysNoReader) {
  const Far far(kBlock);
  DiskCache kept({.folder = folder_ / "cache", .wait_s = 0.05}, Log());
  std::vector<std::unique_ptr<FileLock>> held;
  for (int i = 0; i < 64; ++i)
    held.push_back(
        std::make_unique<FileLock>(folder_ / "cache" / "blocks" / ("fetch-" + std::to_string(i)), 0));
  EXPECT_EQ((*kept.block(far, 0))[0], of(0, far));
  EXPECT_EQ(blocks().size(), 1U);
}

// A cache may be in a folder that other users can write to.
TEST(SecurityDiskCache, NoLinkInItLeadsElsewhere) {
  const test::TemporaryFolder folder;
  const fs::path victim = folder / "victim", blocks = folder / "cache/blocks";
  write_file_atomic(victim, "not to be touched");
  fs::create_directories(blocks);
  std::vector<std::string> names = {"total", "unfinished"};
  for (int i = 0; i < 64; ++i) names.push_back("fetch-" + std::to_string(i));
  for (const std::string& name : names) fs::create_symlink(victim, blocks / name);
  const auto num_blocks = [&] {
    return std::ranges::count_if(fs::directory_iterator(blocks),
                                 [](const auto& entry) { return entry.path().extension() == ".block"; });
  };
  const Far far(kBlock);
  const auto read = [&] {
    DiskCache cache({.folder = folder / "cache", .wait_s = 0}, Log());
    EXPECT_EQ(cache.block(far, 0)->size(), static_cast<std::size_t>(kBlock));
    EXPECT_EQ(read_file(victim), "not to be touched");
  };
  read();
  EXPECT_EQ(num_blocks(), 0) << "without its own files it keeps nothing, and the data is read all the same";
  fs::remove(blocks / "total");
  read();
  EXPECT_EQ(num_blocks(), 1) << "the link in the place of the unfinished block is replaced";
}

}  // namespace
}  // namespace trireme::data
