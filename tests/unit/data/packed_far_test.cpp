// Packed data behind a URL, and shards with bytes from any source.

#include <gmock/gmock.h>

#include <atomic>
#include <cstring>

#include "tests/support/http_server.h"
#include "tests/unit/data/packed_samples.h"
#include "trireme/base/crc32c.h"
#include "trireme/base/files.h"
#include "trireme/data/internal/packed_manifest.h"
#include "trireme/data/pack_text.h"
#include "trireme/data/packed_report.h"
#include "trireme/data/record_dataset.h"
#include "trireme/data/token_dataset.h"
#include "trireme/data/tolerant.h"

namespace trireme::data {
namespace {

using test::expect_same_samples;
using test::message_of;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;
namespace fs = std::filesystem;

class FarPacked : public testing::Test {
 protected:
  FarPacked() {
    const fs::path idx = folder_ / "idx";
    fs::create_directories(idx);
    test::write_idx_files(idx, 23, 5);
    pack(packable({.name = "fashion_mnist", .path = idx.string()}), {.folder = packed_, .shard_bytes = 200});
    write_file_atomic(folder_ / "text", std::string(3000, 'a') + "bcd" + std::string(300, 'd'));
    pack_text({.path = folder_ / "text"}, {.folder = text_});
    publish(packed_, "images");
    publish(text_, "text");
  }

  void publish(const fs::path& folder, const std::string& name) {
    for (const auto& entry : fs::directory_iterator(folder))
      server_.put(name + "/" + entry.path().filename().string(), {.content = read_file(entry.path())});
  }
  DataOptions options(const std::string& path, const std::string& cache = "") const {
    return {.name = "packed", .path = path, .cache = cache};
  }

  test::HttpServer server_;
  test::TemporaryFolder folder_;
  const fs::path packed_ = folder_ / "packed", text_ = folder_ / "packed text";
};

TEST_F(FarPacked, HasTheSamplesOfTheFolder) {
  for (const std::string& cache : {std::string(), (folder_ / "cache").string()}) {
    const DataSource near = open_data(options(packed_.string()));
    const DataSource far = open_data(options(server_.url("images/"), cache));
    expect_same_samples(*indexed(far.train), *indexed(near.train));
    expect_same_samples(*far.test, *near.test);
    EXPECT_EQ(far.input_shape, near.input_shape);
    EXPECT_EQ(far.num_classes, 10);
  }
  const DataSource near = open_data(options(text_.string())), far = open_data(options(server_.url("text")));
  expect_same_samples(*far.test, *near.test);
  expect_same_samples(*indexed(far.train), *indexed(near.train));
}

TEST_F(FarPacked, IsReadOnceThenFromCache) {
  const std::string cache = (folder_ / "cache").string();
  const auto epoch = [&] {
    const DataSource far = open_data(options(server_.url("images"), cache));
    for (std::int64_t i = 0; i < 23; ++i) indexed(far.train)->get(i);
    return indexed(far.train)->shard_ends().size() + far.test->shard_ends().size();
  };
  const auto files = static_cast<int>(epoch()) + 1;
  EXPECT_EQ(files, 11);
  const int first = server_.num_questions();
  EXPECT_EQ(first, 2 * files) << "each is asked how long it is, and is a block";
  epoch();
  EXPECT_EQ(server_.num_questions(), first + files);
}

TEST_F(FarPacked, IsLookedAtAndProvedWhole) {
  const PackedContents contents = inspect_packed(server_.url("images"));
  EXPECT_EQ(contents.splits.at(0).samples, 23);
  EXPECT_EQ(contents.first_samples.size(), 3u);
  PackedVerdict verdict = verify_packed(server_.url("images"));
  EXPECT_EQ(verdict.records, 28);
  EXPECT_THAT(verdict.damages, IsEmpty());
  std::string damaged = read_file(packed_ / "train-00001.trr");
  damaged[20] = static_cast<char>(damaged[20] ^ 1);
  server_.put("images/train-00001.trr", {.content = damaged});
  verdict = verify_packed(server_.url("images"));
  ASSERT_EQ(verdict.damages.size(), 1u);
  EXPECT_EQ(verdict.damages[0].file, "train-00001.trr");
  EXPECT_THAT(verdict.damages[0].problem, HasSubstr(server_.url("images/train-00001.trr")));
}

TEST_F(FarPacked, KeepsSecretOfUrlForEachFile) {
  std::atomic<int> unsigned_questions = 0;
  server_.twist([&](const test::HttpQuestion& question, const std::string&) {
    if (!question.path.ends_with("?key=s3cret")) ++unsigned_questions;
    return std::optional<test::HttpAnswer>();
  });
  const RecordDataset samples(server_.url("images/?key=s3cret"), "train");
  EXPECT_EQ(samples.size(), 23);
  EXPECT_EQ(unsigned_questions, 0);
  server_.put("images/train-00003.trr", {.content = "another", .etag = "\"2\""});
  const std::string opened = message_of([&] { RecordDataset(server_.url("images?key=s3cret"), "train"); });
  EXPECT_THAT(opened, AllOf(StartsWith(server_.url("images/train-00003.trr")), HasSubstr("cut short"),
                            Not(HasSubstr("s3cret"))));
  const std::string read = message_of([&] { samples.get(9); });
  EXPECT_THAT(read, AllOf(HasSubstr("sample 9"), HasSubstr("has changed"), Not(HasSubstr("s3cret"))));
}

TEST_F(FarPacked, ErrorNamesTheMissingUrl) {
  EXPECT_THAT(message_of([&] { open_data(options(server_.url("nothing"))); }),
              AllOf(HasSubstr("no dataset.json in " + server_.url("nothing")), HasSubstr("404")));
  server_.twist([](const test::HttpQuestion& question, const std::string&) {
    return question.path.ends_with("train-00002.trr")
               ? std::optional(test::HttpAnswer{test::http_status(404, "gone")})
               : std::nullopt;
  });
  EXPECT_THAT(message_of([&] { open_data(options(server_.url("images"))); }),
              AllOf(HasSubstr(server_.url("images/train-00002.trr")), HasSubstr("404")));
}

TEST_F(FarPacked, EndlessManifestTakesNoMemory) {
  server_.twist([](const test::HttpQuestion& question, const std::string& right) {
    if (!question.path.ends_with("dataset.json")) return std::optional<test::HttpAnswer>();
    std::string lie = right;
    const std::size_t total = lie.find('/', lie.find("bytes 0-0"));
    return std::optional(test::HttpAnswer{lie.insert(total + 1, "99999999")});
  });
  EXPECT_THAT(message_of([&] { open_data(options(server_.url("images"))); }),
              AllOf(HasSubstr("no valid manifest"), HasSubstr("at most 67108864")));
}

/// A file of any length, whose first and last bytes are given.
class MadeUp : public ByteSource {
 public:
  MadeUp(std::string first, std::string last, std::int64_t size)
      : first_(std::move(first)), last_(std::move(last)), size_(size) {}
  const std::string& name() const override { return name_; }
  const std::string& version() const override { return name_; }
  std::int64_t size() const override { return size_; }
  void read(std::int64_t offset, std::span<std::byte> into) const override {
    if (failures_-- > 0) throw ReadError("the disk does not answer");
    const auto size = static_cast<std::int64_t>(into.size());
    const std::int64_t behind = size_ - static_cast<std::int64_t>(last_.size());
    if (offset + size <= static_cast<std::int64_t>(first_.size()))
      std::memcpy(into.data(), first_.data() + offset, into.size());
    else if (offset >= behind && offset + size <= size_)
      std::memcpy(into.data(), last_.data() + (offset - behind), into.size());
    else
      throw DataError(text("nothing comes of ", size, " bytes at ", offset));
  }

  mutable int failures_ = 0;

 private:
  const std::string name_ = "made up", first_, last_;
  const std::int64_t size_;
};

struct WrittenShard {
  WrittenShard() {
    ShardWriter writer([this](std::span<const std::byte> piece) {
      bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    });
    writer.add("first");
    writer.add("second");
    summary = writer.finish();
  }
  std::string bytes;
  ShardSummary summary;
};

TEST(ShardFile, MarksReadsThatMaySucceedLater) {
  const WrittenShard written;
  const auto source =
      std::make_shared<MadeUp>(written.bytes, "", static_cast<std::int64_t>(written.bytes.size()));
  const ShardFile shard(source, written.summary, 7);
  std::string record(shard.bytes_of(1), '\0');
  source->failures_ = 1;
  EXPECT_THAT(message_of<ReadError>([&] { shard.read(1, 1, record); }),
              AllOf(HasSubstr("sample 8"), HasSubstr("does not answer")));
  shard.read(1, 1, record);
  EXPECT_EQ(record, "second");
}

// A server reports the length of a file, and its last bytes contain the length of the index. Memory is
// allocated only for received bytes.
TEST(ShardFile, MissingIndexTakesNoMemory) {
  const WrittenShard written;
  constexpr std::size_t kTrailer = 32;
  constexpr std::int64_t kRecords = std::int64_t{1} << 50, kSize = 16 + 16 * kRecords + 32;
  std::string trailer = written.bytes.substr(written.bytes.size() - kTrailer);
  const std::uint64_t begins[] = {16, kRecords};
  std::memcpy(trailer.data(), begins, sizeof(begins));
  const std::uint32_t sum = crc32c(std::string_view(trailer).substr(0, 20));
  std::memcpy(trailer.data() + 20, &sum, sizeof(sum));
  ShardSummary claimed = written.summary;
  claimed.records = kRecords;
  claimed.bytes = kSize;
  const auto source = std::make_shared<MadeUp>(written.bytes.substr(0, 16), trailer, kSize);
  EXPECT_THAT(message_of([&] { ShardFile(source, claimed, 0); }),
              HasSubstr("nothing comes of 1048576 bytes"));
}

}  // namespace
}  // namespace trireme::data
