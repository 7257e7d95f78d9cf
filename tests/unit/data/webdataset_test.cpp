#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/http_server.h"
#include "tests/support/image_files.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/data/tar_files.h"
#include "trireme/base/error.h"
#include "trireme/data/internal/shard_paths.h"
#include "trireme/data/internal/tar_index.h"
#include "trireme/data/tar_dataset.h"
#include "trireme/data/tolerant.h"

namespace trireme::data {
namespace {

using test::gradient;
using test::png_bytes;
using test::tar_member;
using test::tar_pax;
using test::write_tar;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using testing::ThrowsMessage;

std::string image_sample(const std::string& key, int number) {
  return tar_member(key + ".cls", std::to_string(number) + "\n") +
         tar_member(key + ".png", png_bytes(gradient(6, 6, number)));
}

class WebDataset : public testing::Test {
 protected:
  std::shared_ptr<const TarDataset> open(const std::vector<std::string>& shards,
                                         const TarDatasetOptions& options = {}) const {
    std::vector<std::shared_ptr<const ByteSource>> sources;
    for (std::size_t i = 0; i < shards.size(); ++i)
      sources.push_back(open_file(write_tar(folder_ / ("shard-" + std::to_string(i) + ".tar"), shards[i])));
    return std::make_shared<TarDataset>(std::move(sources), options, Log());
  }
  std::string error_of(const std::string& shard) const {
    try {
      open({shard});
    } catch (const DataError& error) {
      return error.what();
    }
    return "no error";
  }
  const test::TemporaryFolder folder_;
};

TEST_F(WebDataset, ReachesAnySampleByItsNumber) {
  const auto data = open({image_sample("a", 0) + image_sample("b", 3), image_sample("a", 5)});
  ASSERT_EQ(data->size(), 3);
  EXPECT_THAT(data->labels().first_places(), ElementsAre(Pair(0, 0), Pair(3, 1), Pair(5, 2)));
  EXPECT_EQ(data->labels().samples(), 3);
  EXPECT_THAT(data->shard_ends(), ElementsAre(2, 3));
  for (const auto& [index, number] : {std::pair{2, 5}, {0, 0}, {1, 3}}) {
    const Example sample = data->get(index);
    EXPECT_EQ(sample.target->item<int>(), number);
    EXPECT_EQ((*sample.input)[0][0][0].item<int>(), number);
  }
  EXPECT_THROW(data->get(3), InvalidArgument);
  EXPECT_THROW(data->get(-1), InvalidArgument);
}

TEST_F(WebDataset, ExtensionsSelectFieldsAndTypes) {
  const auto data = open({tar_member("k.json", "[[1, 2.5], [3, 4]]") + tar_member("k.a.txt", "AB") +
                          tar_member("k.b.json", "7") + tar_member("k.note", "?")},
                         {.inputs = {"json", "a.txt"}, .targets = {"b.json"}});
  const Example sample = data->get(0);
  EXPECT_TRUE(sample.input["json"].equal(torch::tensor({1.0F, 2.5F, 3.0F, 4.0F}).reshape({2, 2})));
  EXPECT_TRUE(sample.input["a.txt"].equal(torch::tensor({65L, 66L})));
  EXPECT_TRUE(sample.target->equal(torch::tensor(7L)));
}

TEST_F(WebDataset, OddSampleNamesFilePlaceAndMember) {
  const std::string good = image_sample("a", 0);
  EXPECT_THAT(error_of(good + tar_member("b.cls", "1")),
              AllOf(HasSubstr("shard-0.tar at "), HasSubstr("'b' has cls"), HasSubstr("'a', has cls, png")));
  EXPECT_THAT(error_of(good + image_sample("b", 1) + good),
              AllOf(HasSubstr("shard-0.tar at "), HasSubstr("'a' was there before")));
  EXPECT_THAT(error_of(tar_member("a.cls", "1") + good), HasSubstr("member 'a.cls': it is there twice"));
  EXPECT_THAT(error_of(tar_member("a.cls", "one")),
              AllOf(HasSubstr("member 'a.cls'"), HasSubstr("no class")));
  EXPECT_THAT(error_of(tar_member("a.cls", "-1")), HasSubstr("no class"));
  EXPECT_THAT(error_of(""), HasSubstr("no sample in"));
  EXPECT_THAT(
      [&] {
        open({good, tar_member("x.cls", "1")});
      },
      ThrowsMessage<DataError>(AllOf(HasSubstr("shard-1.tar"), HasSubstr("cls, png"))));
}

TEST_F(WebDataset, NotesOfSystemsAreNoSamples) {
  const auto data = open({tar_member(".DS_Store", "x") + tar_member("README", "x") +
                          tar_member("f/._a.png", "x") + image_sample("f/a.b/c", 1)});
  EXPECT_EQ(data->size(), 1);
  EXPECT_THAT(data->name_of(0), HasSubstr("sample 'f/a.b/c'"));
}

TEST_F(WebDataset, UndecodableImageIsNamedOrReplaced) {
  const std::string shard = image_sample("a", 0) + tar_member("b.cls", "1") +
                            tar_member("b.png", "no image") + image_sample("c", 2);
  EXPECT_THAT([&] { open({shard})->get(1); },
              ThrowsMessage<DataError>(AllOf(HasSubstr("shard-0.tar at "), HasSubstr("member 'b.png'"),
                                             HasSubstr("no JPEG, PNG, WebP or BMP"))));
  testing::internal::CaptureStderr();
  const auto data = with_retries(open({shard}), {.skip = true});
  EXPECT_EQ(data->get(1).target->item<int>(), 2);
  EXPECT_EQ(data->get(1).target->item<int>(), 2);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, AllOf(HasSubstr("member 'b.png'"), HasSubstr("the next one stands in")));
  EXPECT_EQ(said.find("stands in"), said.rfind("stands in"));
}

TEST_F(WebDataset, KeptIndexIsUsedUntilShardChanges) {
  const Log log;
  const auto folder = folder_ / "index";
  const auto path = write_tar(folder_ / "kept.tar", image_sample("a", 0));
  const TarIndex first = index_of(*open_file(path), folder, log);
  const auto file = std::filesystem::directory_iterator(folder)->path();
  // An index that differs from the shard. Its use shows that the shard was not scanned.
  const auto other = open_file(write_tar(folder_ / "other.tar", image_sample("other", 0)));
  std::string forged = TarIndex::scan(*other).to_bytes(*open_file(path));
  std::ofstream(file, std::ios::binary) << forged;
  EXPECT_EQ(index_of(*open_file(path), folder, log).key(0), "other");
  forged.back() = static_cast<char>(forged.back() ^ 1);
  std::ofstream(file, std::ios::binary) << forged;
  EXPECT_EQ(index_of(*open_file(path), folder, log).key(0), "a");
  write_tar(path, image_sample("a", 0) + image_sample("b", 0));
  EXPECT_EQ(index_of(*open_file(path), folder, log).size(), 2);
  EXPECT_EQ(index_of(*open_file(path), folder, log).key(1), "b");
}

TEST_F(WebDataset, DamagedIndexIsNeverTaken) {
  const auto shard = open_file(write_tar(folder_ / "a.tar", image_sample("a", 0) + image_sample("b", 1)));
  const std::string bytes = TarIndex::scan(*shard).to_bytes(*shard);
  ASSERT_TRUE(TarIndex::from_bytes(bytes, *shard));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_FALSE(TarIndex::from_bytes(bytes.substr(0, i), *shard)) << i;
    std::string flipped = bytes;
    flipped[i] = static_cast<char>(flipped[i] ^ 4);
    EXPECT_FALSE(TarIndex::from_bytes(flipped, *shard)) << i;
  }
}

TEST_F(WebDataset, AnIndexHoldsFieldsOfAnyName) {
  const auto shard =
      open_file(write_tar(folder_ / "a.tar", tar_member("a.x\ny", "1") + tar_member("a.z", "2")));
  const TarIndex index = TarIndex::scan(*shard);
  const auto kept = TarIndex::from_bytes(index.to_bytes(*shard), *shard);
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->fields(), index.fields());
}

TEST_F(WebDataset, FolderWithoutIndexCostsPassAndWarning) {
  const auto path = write_tar(folder_ / "a.tar", image_sample("a", 0));
  std::ofstream(folder_ / "file") << "in the way";
  testing::internal::CaptureStderr();
  EXPECT_EQ(index_of(*open_file(path), folder_ / "file", Log()).size(), 1);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("each start looks through"));
}

TEST_F(WebDataset, ConfigurationOpensPatternsAndFolders) {
  std::string ten, two = image_sample("x", 4) + image_sample("y", 3);
  for (int i = 0; i < 10; ++i) ten += image_sample("k" + std::to_string(i), i % 3);
  write_tar(folder_ / "train-000.tar", ten);
  write_tar(folder_ / "train-001.tar", image_sample("z", 3));
  write_tar(folder_ / "val-000.tar", two);
  DataOptions options{.name = "webdataset", .path = folder_.path().string(), .image_size = 4};
  DataSource source = open_data(options);
  EXPECT_EQ(source.train->size(), 11);
  EXPECT_EQ(source.test->size(), 2);
  EXPECT_EQ(source.num_classes, 5);
  EXPECT_EQ(source.held_out, "validation");
  EXPECT_THAT(source.input_shape, ElementsAre(3, 4, 4));
  EXPECT_EQ(indexed(source.train)->get(0).input->scalar_type(), at::kFloat);
  options.path = (folder_ / "train-{000..001}.tar").string();
  source = open_data(options);
  EXPECT_EQ(source.train->size(), 10);
  EXPECT_EQ(source.test->size(), 1);
  options.test_path = (folder_ / "val-000.tar").string();
  source = open_data(options);
  EXPECT_EQ(source.train->size(), 11);
  EXPECT_EQ(source.held_out, "test");
  options.inputs = {"pgn"};
  EXPECT_THAT([&] { open_data(options); }, ThrowsMessage<InvalidArgument>(HasSubstr("did you mean 'png'")));
}

TEST_F(WebDataset, WrongClassNamesSampleWithAnyIndex) {
  std::string members;
  for (int i = 0; i < 10; ++i) members += image_sample("k" + std::to_string(i), i % 2);
  write_tar(folder_ / "a.tar", members + image_sample("wrong", 1700000000));
  DataOptions options{.name = "webdataset",
                      .path = (folder_ / "a.tar").string(),
                      .image_size = 4,
                      .cache = (folder_ / "cache").string()};
  for (const char* pass : {"made", "kept"}) {
    EXPECT_THAT([&] { open_data(options); },
                ThrowsMessage<DataError>(AllOf(HasSubstr("a.tar, sample 'wrong' is of class 1700000000"),
                                               HasSubstr("no sample is of class 2"))))
        << pass;
  }
  options.ignored_labels = {1700000000};
  EXPECT_EQ(open_data(options).num_classes, 2);
  options.ignored_labels = {};
  options.target = "number";
  const DataSource numbers = open_data(options);
  EXPECT_EQ(numbers.num_classes, 0);
  EXPECT_TRUE(indexed(numbers.train)->get(1).target->equal(torch::tensor(1.0F)));
}

TEST_F(WebDataset, RemoteShardsAreReadOnceThenCached) {
  test::HttpServer server;
  for (int shard = 0; shard < 2; ++shard) {
    std::string members;
    for (int i = 0; i < 10; ++i) members += image_sample(text("k", i), i + 10 * shard);
    server.put(text("s-", shard, ".tar"), {.content = members + test::tar_end()});
  }
  const auto epoch = [&](const std::string& cache) {
    const DataSource source = open_data({.name = "webdataset",
                                         .path = server.url("s-{0..1}.tar"),
                                         .image_size = 4,
                                         .cache = cache.empty() ? std::string() : (folder_ / cache).string(),
                                         .num_classes = 20});
    std::vector<int> classes;
    for (std::int64_t i = 0; i < source.train->size(); ++i)
      classes.push_back(indexed(source.train)->get(i).target->item<int>());
    return classes;
  };
  const std::vector<int> expected = {0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 16, 17, 18};
  EXPECT_EQ(epoch("cache"), expected);
  const int first = server.num_questions();
  EXPECT_EQ(first, 2 * 2);  // each shard is a block, and its length is requested
  EXPECT_EQ(epoch("cache"), expected);
  EXPECT_EQ(server.num_questions(), first + 2);
  EXPECT_EQ(epoch(""), expected);
  EXPECT_EQ(server.num_questions(), first + 2 + 2 * 2 + 18);
}

TEST(ShardPaths, BracesAreThoseOfTheShell) {
  EXPECT_THAT(expand_braces("a-{08..11}.tar"), ElementsAre("a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"));
  EXPECT_THAT(expand_braces("{a,b}{1..2}"), ElementsAre("a1", "a2", "b1", "b2"));
  EXPECT_THAT(expand_braces("plain"), ElementsAre("plain"));
  for (const char* wrong : {"{1..", "1..2}", "{2..1}", "{a..b}", "{1..{2}}", "{0..1000000000}",
                            "{1..99999999999999999999}", "{0..999}{0..999}{0..999}"})
    EXPECT_THROW(expand_braces(wrong), InvalidArgument) << wrong;
}

}  // namespace
}  // namespace trireme::data
