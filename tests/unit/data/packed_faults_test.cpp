// Packed data that are damaged, truncated, foreign, or obstructed.

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/unit/data/packed_samples.h"
#include "trireme/base/crc32c.h"
#include "trireme/base/files.h"
#include "trireme/data/internal/record_layout.h"
#include "trireme/data/pack_text.h"
#include "trireme/data/packed_report.h"
#include "trireme/data/record_dataset.h"
#include "trireme/data/synthetic_dataset.h"
#include "trireme/data/text_dataset.h"
#include "trireme/data/token_dataset.h"

namespace trireme::data {
namespace {

using test::flip_byte;
using test::message_of;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
namespace fs = std::filesystem;

class DamagedPacked : public testing::Test {
 protected:
  /// Eight training samples of 28 bytes in two shards, of five and three samples, and two test samples.
  DamagedPacked() {
    const fs::path idx = folder_ / "idx";
    fs::create_directories(idx);
    test::write_idx_files(idx, 8, 2);
    pack(packable({.name = "fashion_mnist", .path = idx.string()}), options());
  }
  PackOptions options() const { return {.folder = packed_, .shard_bytes = 16 + 5 * 44 + 32}; }
  fs::path shard(int number = 0) const { return packed_ / ("train-0000" + std::to_string(number) + ".trr"); }
  std::string error_of_opening() const {
    return message_of([&] { open_data({.name = "packed", .path = packed_.string()}); });
  }
  void rewrite(const fs::path& path, const std::function<void(std::string&)>& change) const {
    std::string content = read_file(path);
    change(content);
    std::ofstream(path, std::ios::binary) << content;
  }
  /// Changes the manifest and corrects its checksum.
  void rewrite_manifest(const std::function<void(nlohmann::ordered_json&)>& change) const {
    auto json = nlohmann::ordered_json::parse(read_file(packed_ / "dataset.json"));
    json.erase("crc32c");
    change(json);
    json["crc32c"] = crc32c(json.dump(2));
    write_file_atomic(packed_ / "dataset.json", json.dump(2));
  }

  test::TemporaryFolder folder_;
  fs::path packed_ = folder_ / "packed";
};

TEST_F(DamagedPacked, FlippedByteNamesFileOffsetAndSample) {
  ASSERT_EQ(RecordDataset(packed_, "train").size(), 8);
  flip_byte(shard(1), 16 + 28 + 3);
  const RecordDataset samples(packed_, "train");
  const auto names_it = AllOf(HasSubstr(shard(1).string()), HasSubstr("sample 6"), HasSubstr("offset 44"),
                              HasSubstr("CRC-32C"));
  EXPECT_THAT(message_of([&] { samples.get(6); }), names_it);
  const std::vector<std::int64_t> with = {7, 1, 6, 5}, without = {7, 1, 5};
  EXPECT_THAT(message_of([&] { samples.get_batch(with); }), names_it);
  EXPECT_EQ(samples.get_batch(without).rows(), 3) << "after a failure, whole samples are still read";
  EXPECT_THAT(message_of([&] { samples.get(6); }), names_it) << "each time";
}

TEST_F(DamagedPacked, FindsEveryFlippedByteOfShard) {
  const std::string whole = read_file(shard());
  const Example expected =
      RecordDataset(packed_, "train").get_batch(std::vector<std::int64_t>{0, 1, 2, 3, 4});
  for (std::size_t offset = 0; offset < whole.size(); ++offset) {
    flip_byte(shard(), offset);
    const PackedVerdict verdict = verify_packed(packed_);
    EXPECT_THAT(verdict.damages, SizeIs(1)) << offset;
    const std::string said = message_of([&] {
      RecordDataset(packed_, "train").get_batch(std::vector<std::int64_t>{0, 1, 2, 3, 4});
    });
    EXPECT_THAT(said, HasSubstr(shard().string())) << offset;
    flip_byte(shard(), offset);
  }
  EXPECT_THAT(verify_packed(packed_).damages, IsEmpty());
}

TEST_F(DamagedPacked, RejectsShardOfAnyOtherLength) {
  const std::string whole = read_file(shard());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    fs::resize_file(shard(), size);
    EXPECT_THAT(error_of_opening(), AllOf(HasSubstr(shard().string()), HasSubstr("cut short"))) << size;
    std::ofstream(shard(), std::ios::binary) << whole;
  }
  fs::resize_file(shard(), whole.size() + 1);
  EXPECT_THAT(error_of_opening(), HasSubstr("another file"));
  fs::remove(shard());
  EXPECT_THAT(error_of_opening(), AllOf(HasSubstr(shard().string()), HasSubstr("No such file")));
}

TEST_F(DamagedPacked, TruncatedShardIsErrorNotSignal) {
  const RecordDataset samples(packed_, "train");
  fs::resize_file(shard(), 16 + 28 + 5);
  EXPECT_EQ(samples.get(0).input->size(0), 1);
  EXPECT_THAT(message_of([&] { samples.get(1); }),
              AllOf(HasSubstr(shard().string()), HasSubstr("sample 1"), HasSubstr("ends at offset 49")));
}

TEST_F(DamagedPacked, ShardRewrittenDuringReadIsError) {
  const RecordDataset samples(packed_, "train");
  rewrite(shard(), [](std::string& content) { std::fill(content.begin() + 16, content.begin() + 100, 'x'); });
  EXPECT_THAT(message_of([&] { samples.get(0); }), HasSubstr("is damaged"));
}

TEST_F(DamagedPacked, FindsSwappedShards) {
  // Both have five samples.
  const fs::path other = folder_ / "idx2";
  fs::create_directories(other);
  test::write_idx_files(other, 5, 2);
  PackOptions elsewhere = options();
  elsewhere.folder = folder_ / "other";
  pack(packable({.name = "fashion_mnist", .path = other.string()}), elsewhere);
  flip_byte(elsewhere.folder / "train-00000.trr", 16);
  fs::copy_file(elsewhere.folder / "test-00000.trr", packed_ / "test-00000.trr",
                fs::copy_options::overwrite_existing);
  EXPECT_EQ(error_of_opening(), "no error") << "the same bytes";
  test::write_idx_files(other, 8, 2);
  elsewhere.force = true;
  DataOptions mnist = {.name = "mnist", .path = other.string()};
  flip_byte(other / "train-images-idx3-ubyte", 30);
  pack(packable(mnist), elsewhere);
  fs::copy_file(elsewhere.folder / "train-00000.trr", shard(), fs::copy_options::overwrite_existing);
  EXPECT_THAT(error_of_opening(), AllOf(HasSubstr(shard().string()), HasSubstr("another shard")));
}

TEST_F(DamagedPacked, VerifyListsAllDamage) {
  flip_byte(shard(0), 16);
  flip_byte(shard(0), 16 + 4 * 28);
  fs::remove(shard(1));
  const PackedVerdict verdict = verify_packed(packed_);
  ASSERT_THAT(verdict.damages, SizeIs(3));
  EXPECT_EQ(verdict.damages[0].sample, 0);
  EXPECT_EQ(verdict.damages[0].offset, 16u);
  EXPECT_EQ(verdict.damages[1].sample, 4);
  EXPECT_EQ(verdict.damages[2].file, "train-00001.trr");
  EXPECT_FALSE(verdict.damages[2].sample);
  EXPECT_EQ(verdict.records, 3 + 2);
}

TEST_F(DamagedPacked, ManifestIsCheckedBeforeUse) {
  const fs::path manifest = packed_ / "dataset.json";
  const std::string whole = read_file(manifest);
  std::string other = whole;
  other.replace(other.find("\"records\": 5"), 12, "\"records\": 4");
  write_file_atomic(manifest, other);
  EXPECT_THAT(error_of_opening(), AllOf(HasSubstr(manifest.string()), HasSubstr("damaged")));
  for (const std::string& content :
       {std::string(), std::string("{"), std::string("[]"), std::string("{\"format\": 3}"),
        std::string(100'000, '['), whole.substr(0, whole.size() / 2)}) {
    write_file_atomic(manifest, content);
    EXPECT_THAT(error_of_opening(), HasSubstr("no valid manifest")) << content.substr(0, 20);
  }
  fs::remove(manifest);
  EXPECT_THAT(error_of_opening(), AllOf(HasSubstr("no dataset.json"), HasSubstr("trireme data pack")));
}

TEST_F(DamagedPacked, RejectsImpossibleManifestsWithoutMemory) {
  using Json = nlohmann::ordered_json;
  const std::string whole = read_file(packed_ / "dataset.json");
  const auto refused = [&](const std::function<void(Json&)>& change) {
    write_file_atomic(packed_ / "dataset.json", whole);
    rewrite_manifest(change);
    return message_of([&] {
      const DataSource source = open_data({.name = "packed", .path = packed_.string()});
      indexed(source.train)->get(0);
    });
  };
  EXPECT_EQ(refused([](Json&) {}), "no error");
  const std::int64_t huge = std::int64_t{1} << 62;
  EXPECT_NE(refused([&](Json& json) { json["fields"][0]["shape"] = {huge, huge}; }), "no error");
  EXPECT_NE(refused([&](Json& json) { json["fields"][0]["shape"] = {1, 5, 5}; }), "no error");
  EXPECT_NE(refused([&](Json& json) { json["fields"][0]["shape"] = {-2}; }), "no error");
  EXPECT_NE(refused([&](Json& json) { json["fields"][0]["dtype"] = "u9"; }), "no error");
  EXPECT_NE(refused([&](Json& json) { json["fields"] = Json::array(); }), "no error");
  EXPECT_NE(refused([&](Json& json) { json["fields"][0]["normalised_with"]["std"] = 0; }), "no error");
  EXPECT_NE(refused([&](Json& json) { json["splits"]["train"]["samples"] = 9; }), "no error");
  EXPECT_NE(refused([&](Json& json) { json["splits"]["train"]["shards"][0]["records"] = huge; }), "no error");
  EXPECT_NE(refused([&](Json& json) { json["splits"]["train"]["shards"][0]["file"] = "../x.trr"; }),
            "no error");
  EXPECT_NE(refused([&](Json& json) { json["splits"] = 3; }), "no error");
  EXPECT_THAT(refused([&](Json& json) { json["num_classes"] = 10.5; }), HasSubstr("found 10.5"));
  EXPECT_THAT(refused([&](Json& json) { json["splits"]["train"]["samples"] = 1e300; }), HasSubstr("1e+300"));
  EXPECT_NE(refused([&](Json& json) { json["fields"][0]["shape"] = {0, huge, huge}; }), "no error");
  EXPECT_THAT(refused([&](Json& json) { json["version"] = 2; }), HasSubstr("version 2"));
}

TEST_F(DamagedPacked, RejectsEmptyRecordWithOverflowingStrides) {
  const RecordLayout layout{{{.name = "x", .shape = {-1, -1, -1}}}};
  const std::array<std::int64_t, 3> dims = {0, std::int64_t{1} << 62, std::int64_t{1} << 62};
  const std::string record(reinterpret_cast<const char*>(dims.data()), sizeof(dims));
  EXPECT_THAT(message_of([&] { parse_record(layout, record); }), HasSubstr("does not fit"));
}

TEST_F(DamagedPacked, UsedFolderIsReplacedOnlyByForce) {
  const auto pack_again = [&](bool force) {
    PackOptions again = options();
    again.force = force;
    return message_of<InvalidArgument>([&] {
      pack({.source = {.name = "small",
                       .train = std::make_shared<SyntheticDataset>(SyntheticOptions{.num_samples = 3}),
                       .test = nullptr}},
           again);
    });
  };
  EXPECT_THAT(pack_again(false), AllOf(HasSubstr("holds packed data already"), HasSubstr("--force")));
  EXPECT_EQ(RecordDataset(packed_, "train").size(), 8);
  EXPECT_EQ(pack_again(true), "no error");
  EXPECT_EQ(RecordDataset(packed_, "train").size(), 3);
  EXPECT_FALSE(fs::exists(packed_ / "test-00000.trr"));
  fs::remove(packed_ / "dataset.json");
  EXPECT_THAT(pack_again(true), HasSubstr("holds other files"))
      << "what is not known to be packed data stays";
  EXPECT_TRUE(fs::exists(packed_ / "train-00000.trr"));
}

/// One of its samples cannot be read.
class BrokenDataset : public Dataset {
 public:
  std::int64_t size() const override { return 40; }
  Example get(std::int64_t index) const override {
    if (index == 30) throw DataError("sample 30 is gone");
    return SyntheticDataset(SyntheticOptions{}).get(index);
  }
};

TEST_F(DamagedPacked, FailureLeavesNothingAndMayBeRetried) {
  const fs::path folder = folder_ / "new";
  const auto broken = std::make_shared<BrokenDataset>();
  const PackOptions small{.folder = folder, .shard_bytes = 20'000};
  EXPECT_THAT(message_of([&] { pack({.source = {.name = "own", .train = broken, .test = nullptr}}, small); }),
              HasSubstr("sample 30 is gone"));
  EXPECT_FALSE(fs::exists(folder));
  fs::create_directories(folder);
  EXPECT_NE(message_of([&] { pack({.source = {.name = "own", .train = broken, .test = nullptr}}, small); }),
            "no error");
  EXPECT_TRUE(fs::is_empty(folder));
  pack({.source = {.name = "own",
                   .train = std::make_shared<SyntheticDataset>(SyntheticOptions{.num_samples = 3}),
                   .test = nullptr}},
       small);
  EXPECT_EQ(RecordDataset(folder, "train").size(), 3);
}

TEST_F(DamagedPacked, FailedWriteNamesFileAndLeavesNothing) {
  const auto samples = std::make_shared<SyntheticDataset>(SyntheticOptions{.num_samples = 40});
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const struct rlimit small = {.rlim_cur = 30'000, .rlim_max = before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string said = message_of([&] {
    pack({.source = {.name = "own", .train = samples, .test = nullptr}}, {.folder = folder_ / "new"});
  });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(said, AllOf(HasSubstr("new/train-00000.trr"), HasSubstr("File too large")));
  EXPECT_FALSE(fs::exists(folder_ / "new"));
}

TEST_F(DamagedPacked, FolderOfKilledPackingSaysSo) {
  const fs::path folder = folder_ / "killed";
  fs::create_directories(folder);
  // As left by a killed process: the first manifest, complete shards, and one under its temporary name.
  PackOptions into{.folder = folder, .shard_bytes = 20'000};
  into.progress = [&](const std::string&, std::int64_t done, std::int64_t) {
    if (done == 0) return;
    fs::copy(folder, folder_ / "left", fs::copy_options::recursive);
  };
  const auto samples = std::make_shared<SyntheticDataset>(SyntheticOptions{.num_samples = 20});
  pack({.source = {.name = "own", .train = samples, .test = nullptr}}, into);
  const auto opened = [&] { RecordDataset(folder_ / "left", "train"); };
  EXPECT_THAT(message_of(opened), AllOf(HasSubstr("not completed"), HasSubstr("--force")));
  into.folder = folder_ / "left";
  into.progress = nullptr;
  EXPECT_THAT(message_of<InvalidArgument>(
                  [&] { pack({.source = {.name = "own", .train = samples, .test = nullptr}}, into); }),
              HasSubstr("--force"));
  into.force = true;
  pack({.source = {.name = "own", .train = samples, .test = nullptr}}, into);
  EXPECT_EQ(message_of(opened), "no error");
  for (const auto& entry : fs::directory_iterator(folder_ / "left"))
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr(".part")));
}

class DamagedText : public testing::Test {
 protected:
  DamagedText() {
    std::string content;
    for (int i = 0; i < 100'000; ++i) content += static_cast<char>('a' + i * 7 % 26);
    write_file_atomic(folder_ / "text", content);
    pack_text({.path = folder_ / "text"}, {.folder = packed_});
  }
  test::TemporaryFolder folder_;
  const fs::path packed_ = folder_ / "packed", shard_ = packed_ / "train-00000.trr";
};

TEST_F(DamagedText, PageIsCheckedBeforeItsTokens) {
  flip_byte(shard_, 16 + 40'000);
  const TokenDataset text(packed_, "train", {.block = 8});
  EXPECT_EQ(text.get(0).input->size(0), 8);
  for (int again = 0; again < 2; ++again) {
    EXPECT_THAT(message_of([&] { text.get(50'000); }),
                AllOf(HasSubstr(shard_.string()), HasSubstr("offset 32784"), HasSubstr("CRC-32C")));
  }
  EXPECT_NE(message_of([&] { text.get(32'767); }), "no error") << "a sample over the end of a page";
  EXPECT_THAT(verify_packed(packed_).damages, SizeIs(1));
}

TEST_F(DamagedText, FileChangedDuringReadIsError) {
  const TokenDataset text(packed_, "train", {.block = 8});
  text.get(3);
  flip_byte(shard_, 16 + 5);
  fs::last_write_time(shard_, fs::last_write_time(shard_) + std::chrono::seconds(2));
  EXPECT_THAT(message_of([&] { text.get(3); }), HasSubstr("has changed while it was in use"));
  fs::resize_file(shard_, 17);
  EXPECT_THAT(message_of([&] { text.get(3); }),
              AllOf(HasSubstr(shard_.string()), HasSubstr("ends at offset")));
}

TEST_F(DamagedText, KindsAreNotMistakenForEachOther) {
  EXPECT_THAT(message_of([&] { RecordDataset(packed_, "train"); }), HasSubstr("TokenDataset"));
  EXPECT_THAT(message_of([&] { TokenDataset(packed_, "validation", {}); }),
              HasSubstr("no split 'validation'"));
}

TEST_F(DamagedText, ThreadsMayReadTheSamePages) {
  const TokenDataset text(packed_, "train", {.block = 64});
  const TextDataset source(std::make_shared<const EncodedText>(folder_ / "text"),
                           {.begin = 0, .end = 90'000, .block = 64});
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int each = 0; each < 4; ++each) {
    threads.emplace_back([&] {
      for (std::int64_t i = 0; i < source.size(); i += 97) {
        if (!text.get(i).input->equal(source.get(i).input)) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace trireme::data
