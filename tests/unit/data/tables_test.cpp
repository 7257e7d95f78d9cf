// Tables as text, and arrays of NumPy.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>

#include "tests/support/child_process.h"
#include "tests/support/memory_limit.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/data/csv_dataset.h"
#include "trireme/data/internal/npy.h"
#include "trireme/data/numpy_dataset.h"

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using testing::ThrowsMessage;

std::string bytes_of_values(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

std::string npy(const std::string& type, const std::string& shape, const std::string& values,
                const std::string& order = "False") {
  std::string dict = "{'descr': '" + type + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
  dict.resize(118, ' ');
  return std::string("\x93NUMPY\x01\x00\x76\x00", 10) + dict + values;
}

class Tables : public testing::Test {
 protected:
  std::shared_ptr<const ByteSource> write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return open_file(folder_ / name);
  }
  CsvTable csv(const std::string& content, const CsvOptions& options = {}) const {
    return read_csv(*write("t.csv", content), options);
  }
  void rejects(const std::string& content, const std::string& place, const std::string& why,
               const CsvOptions& options = {}) const {
    EXPECT_THAT([&] { csv(content, options); },
                ThrowsMessage<DataError>(AllOf(HasSubstr("t.csv" + place), HasSubstr(why))))
        << content;
  }
  DataSource open(const std::string& name, const std::string& path, DataOptions options = {}) const {
    options.name = name;
    options.path = (folder_ / path).string();
    return open_data(options);
  }
  template <class Error = DataError>
  void rejects_to_open(const std::string& path, const DataOptions& options, const std::string& place,
                       const std::string& why) const {
    const std::string name = path.ends_with(".csv") ? "csv" : "numpy";
    EXPECT_THAT([&] { open(name, path, options); },
                ThrowsMessage<Error>(AllOf(HasSubstr(place), HasSubstr(why))));
  }
  /// A file with one of the targets in each row.
  void write_targets(const std::string& name, const std::vector<std::string>& targets) const {
    std::string content = "x,y\n";
    for (const std::string& target : targets) content += "0.5," + target + "\n";
    write(name, content);
  }
  const test::TemporaryFolder folder_;
};

TEST_F(Tables, CellsBecomeNumbersAndLastColumnTarget) {
  const CsvTable table =
      csv("\xef\xbb\xbf"
          "a, b,\"c \"\"1\"\"\"\r\n1,-2.5e1,3\r\n\r\n\"4\",+5, 6");
  EXPECT_THAT(table.columns.inputs, ElementsAre("a", "b"));
  EXPECT_THAT(table.columns.targets, ElementsAre("c \"1\""));
  EXPECT_THAT(table.inputs, ElementsAre(1, -25, 4, 5));
  EXPECT_THAT(table.targets, ElementsAre(3, 6));
  EXPECT_TRUE(table.targets_are_classes);
  const CsvDataset classes(table, CsvDataset::Targets::kClasses);
  EXPECT_THAT(classes.labels().first_places(), ElementsAre(Pair(3, 2), Pair(6, 4)));
  EXPECT_TRUE(classes.get(1).input->equal(torch::tensor({4.0F, 5.0F})));
  EXPECT_TRUE(classes.get(1).target->equal(torch::tensor(6L)));
  EXPECT_THROW(classes.get(2), InvalidArgument);
}

TEST_F(Tables, ColumnsAreChosenByName) {
  const CsvTable table = csv("a,b,c\n1,2,3\n", {.columns = {.inputs = {"c"}, .targets = {"b", "a"}}});
  EXPECT_FALSE(table.targets_are_classes);
  const Example row = CsvDataset(table, CsvDataset::Targets::kNumbers).get(0);
  EXPECT_TRUE(row.input->equal(torch::tensor({3.0F})));
  EXPECT_TRUE(row.target->equal(torch::tensor({2.0F, 1.0F})));
  EXPECT_THAT([&] { csv("alpha,b\n1,2\n", {.columns = {.inputs = {"alpah"}}}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("did you mean 'alpha'")));
}

TEST_F(Tables, FractionalOrNegativeTargetIsNumber) {
  EXPECT_FALSE(csv("a,b\n1,2\n1,3.0\n").targets_are_classes);
  EXPECT_FALSE(csv("a,b\n1,2\n1,-3\n").targets_are_classes);
}

TEST_F(Tables, WholeNumbersAreNumbersForNumericTarget) {
  const CsvTable table = csv("a,b\n1,2\n1,300000\n", {.target = TargetMeaning::kNumber});
  EXPECT_FALSE(table.targets_are_classes);
  EXPECT_THAT(table.targets, ElementsAre(2, 300000));
}

TEST_F(Tables, InvalidClassIsNamedByLine) {
  const CsvOptions classes{.target = TargetMeaning::kClass};
  const CsvTable table = csv("a,b\n1,0\n1,1.0\n", classes);
  EXPECT_TRUE(table.targets_are_classes);
  EXPECT_THAT(table.targets, ElementsAre(0, 1));
  rejects("a,b\n1,0\n1,2.5\n", ", line 3, column 'b'", "'2.5' is no class", classes);
  rejects("a,b\n1,setosa\n", ", line 2, column 'b'", "number the classes", classes);
  rejects("a,b\n1,1e300\n", ", line 2, column 'b'", "'1e300'", classes);
  EXPECT_THAT(
      [&] {
        csv("a,b,c\n1,2,3\n", {.columns = {.targets = {"b", "c"}}, .target = TargetMeaning::kClass});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("names 2 columns, and a class is one")));
}

TEST_F(Tables, FirstLineOfNumbersIsASample) {
  const CsvTable table = csv("0.1,0.5,1\n0.2,0.5,0\n");
  EXPECT_EQ(table.rows, 2);
  EXPECT_THAT(table.columns.inputs, ElementsAre("1", "2"));
  EXPECT_THAT(table.targets, ElementsAre(1, 0));
  EXPECT_EQ(csv("2001,2002,y\n1,2,3\n", {.header = CsvHeader::kYes}).rows, 1);
  EXPECT_EQ(csv("0,1,2\n1,2,3\n", {.header = CsvHeader::kNo}).rows, 2);
  EXPECT_EQ(csv("0,1,2\n1,2,3\n", {.header = CsvHeader::kYes}).rows, 1);
  EXPECT_EQ(csv("0.5,1\n1,2\n", {.columns = {.inputs = {"2"}, .targets = {"1"}}}).targets[0], 0.5);
  rejects("x,y\n1,2\n", ", line 1, column '1'", "'x' is no finite number", {.header = CsvHeader::kNo});
  EXPECT_THAT([&] { csv("0.5,1\n", {.columns = {.inputs = {"a"}}}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("columns are named 1 to 2 (data.header)")));
}

TEST_F(Tables, AmbiguousFirstLineRequiresSetting) {
  for (const std::string line : {"0,1,2", "0,1", "2001,2002,y", "0.5,nan,1", "0.5,,1", "5.1,3.5,setosa"})
    rejects(line + "\n1,2,3\n", ", line 1", "set data.header");
}

TEST_F(Tables, UnnamedColumnIsNoInputUnlessNamed) {
  for (const std::string line : {",x,y", "\"\",x,y", "Unnamed: 0,x,y", ",0,1"}) {
    EXPECT_THAT(
        [&] { csv(line + "\n0,0.5,1\n1,0.5,0\n"); },
        ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("t.csv, line 1: column 1 has no name"),
                                             HasSubstr("index=False"), HasSubstr("data.inputs = [\""))))
        << line;
  }
  EXPECT_THAT(csv(",x,y\n7,0.5,1\n", {.columns = {.inputs = {"x"}}}).inputs, ElementsAre(0.5));
  EXPECT_THAT(csv(",x,y\n7,0.5,1\n", {.columns = {.inputs = {"", "x"}}}).inputs, ElementsAre(7, 0.5));
  EXPECT_THAT(
      [&] { csv("x,y,\n1,2,\n"); },
      ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("column 3 has no name"), HasSubstr("end of lines"))));
}

TEST_F(Tables, OtherSeparatorsAreNamedAndReadable) {
  EXPECT_THAT(csv("a;b\n1;2\n", {.separator = ';'}).inputs, ElementsAre(1));
  EXPECT_THAT(csv("a\tb\n1\t2\n", {.separator = '\t'}).targets, ElementsAre(2));
  EXPECT_THAT([&] { csv("a;b\n1;2\n"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("set data.separator = \";\"")));
  EXPECT_THAT([&] { csv("a\tb\n1\t2\n"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("set data.separator = \"\\t\"")));
  rejects("1,5;2,5\n1,5;2,5\n", ", line 1", "set data.separator = \";\"");
  rejects("a;b\n1,5;2\n", ", line 2, column 'a'", "write decimals with a point", {.separator = ';'});
  write("t.csv", "a;b\n1;2\n");
  rejects_to_open<InvalidArgument>("t.csv", {.separator = ";;"}, "data.separator", "one character");
  rejects_to_open<InvalidArgument>("t.csv", {.separator = "."}, "data.separator", "one character");
}

TEST_F(Tables, LinesEndAsAnySystemEndsThem) {
  for (const std::string end : {"\n", "\r\n", "\r"}) {
    const CsvTable table = csv("a,b" + end + "1,2" + end + end + "3,4");
    EXPECT_THAT(table.inputs, ElementsAre(1, 3));
    EXPECT_EQ(table.labels.first_places().at(4), 4);
  }
  rejects("\x1f\x8b\b", "", "compressed by gzip");
  rejects(std::string("a,b\n1\0\x1b[2J,2\n", 12), ", line 2, column 'a'",
          "'1\\x00\\x1b[2J' is no finite number");
  rejects(std::string("\xff\xfe"
                      "a\0,\0",
                      6),
          "", "UTF-16");
}

TEST_F(Tables, BadRowNamesLineAndColumn) {
  rejects("a,b\n1,2\n\n3,x\n", ", line 4, column 'b'", "'x' is no finite number");
  rejects("a,b\n1,\n", ", line 2, column 'b'", "the cell is empty");
  rejects("a,b\n1,2\n,\n", ", line 3, column 'a'", "the cell is empty");
  rejects("a,b\nnan,1\n", ", line 2, column 'a'", "'nan'");
  rejects("a,b\n1e39,1\n", ", line 2, column 'a'", "'1e39'");
  rejects("a,b\n1,2\n1,2,3\n", ", line 3", "3 cells");
  rejects("a,b\n\"1\n\",2\n1\n", ", line 4", "1 cells");
  rejects("a,b\n\"1,2\n", ", line 2", "not closed");
  rejects("a,a\n1,2\n", ", line 1", "one name");
  rejects("a,b\n", "", "no line of numbers");
  rejects("", "", "is empty");
}

TEST_F(Tables, TablesLongerThanPieceAreReadWhole) {
  std::string content = "a,b\n";
  for (int i = 0; i < 300000; ++i) content += std::to_string(i) + "," + std::to_string(i % 7) + "\n";
  ASSERT_GT(content.size(), std::size_t{2} << 20);
  const CsvTable table = csv(content);
  ASSERT_EQ(table.rows, 300000);
  for (int i = 0; i < 300000; ++i)
    ASSERT_EQ(table.inputs[static_cast<std::size_t>(i)], static_cast<float>(i));
}

TEST_F(Tables, ConfigurationOpensOneOrTwoCsvFiles) {
  std::string content = "a,b\n";
  for (int i = 0; i < 20; ++i) content += std::to_string(i) + "," + std::to_string(i % 4) + "\n";
  write("t.csv", content);
  const DataSource source = open("csv", "t.csv");
  EXPECT_EQ(source.train->size(), 18);
  EXPECT_EQ(source.num_classes, 4);
  EXPECT_THAT(source.input_shape, ElementsAre(1));
  write("train.csv", content);
  write("test.csv", "b,a\n4,1\n");
  std::filesystem::remove(folder_ / "t.csv");
  const DataSource two = open("csv", "");
  EXPECT_EQ(two.train->size(), 20);
  EXPECT_EQ(two.num_classes, 5);
  EXPECT_EQ(two.test->get(0).input->item<float>(), 1);
  write("test.csv", "b,a\n9.5,1\n");
  EXPECT_EQ(open("csv", "").num_classes, 0);
  EXPECT_EQ(indexed(open("csv", "").train)->get(3).target->item<float>(), 3);
}

TEST_F(Tables, WrongLabelDoesNotDecideClassCount) {
  std::vector<std::string> labels;
  for (int i = 0; i < 40; ++i) labels.push_back(std::to_string(i % 2));
  labels.push_back("1700000000");
  write_targets("t.csv", labels);
  rejects_to_open("t.csv", {}, "t.csv, line 42 is of class 1700000000", "no sample is of class 2");
  rejects_to_open("t.csv", {.num_classes = 2}, "t.csv, line 42 is of class 1700000000",
                  "data.num_classes = 2 are 0 to 1");
  EXPECT_EQ(open("csv", "t.csv", {.ignored_labels = {1700000000}}).num_classes, 2);
  EXPECT_EQ(open("csv", "t.csv", {.target = "number"}).num_classes, 0);
  labels.back() = "3";
  write_targets("t.csv", labels);
  EXPECT_EQ(open("csv", "t.csv", {.num_classes = 5}).num_classes, 5);
  labels.back() = "-1";
  write_targets("t.csv", labels);
  rejects_to_open("t.csv", {.target = "class"}, "t.csv, line 42 is of class -1", "objective.ignored_classes");
  EXPECT_EQ(open("csv", "t.csv", {.target = "class", .ignored_labels = {-1}}).num_classes, 2);
}

TEST_F(Tables, OffsetLabelsAndIdsAreNoClasses) {
  std::vector<std::string> from_one, ids;
  for (int i = 0; i < 20; ++i)
    from_one.push_back(std::to_string(1 + i % 3)), ids.push_back(std::to_string(i));
  write_targets("t.csv", from_one);
  rejects_to_open("t.csv", {}, "t.csv, line 2 is of class 1", "no sample is of class 0");
  write_targets("t.csv", ids);
  rejects_to_open("t.csv", {}, "line 21", "a class of its own");
  EXPECT_EQ(open("csv", "t.csv", {.num_classes = 20}).num_classes, 20);
  EXPECT_EQ(open("csv", "t.csv", {.target = "number"}).num_classes, 0);
}

TEST_F(Tables, WholeNumbersFollowMeaningOfTarget) {
  write("x.npy", npy("<f4", "(10, 1)", bytes_of_values(std::vector<float>(10, 7))));
  write("y.npy", npy("|u1", "(10,)", std::string("\0\1\0\1\0\1\0\1\0\1", 10)));
  const DataSource classes = open("numpy", "", {.target = "class"});
  EXPECT_EQ(classes.num_classes, 2);
  const DataSource numbers = open("numpy", "", {.target = "number"});
  EXPECT_EQ(numbers.num_classes, 0);
  const Example batch = indexed(numbers.train)->get_batch(std::vector<std::int64_t>{0, 1});
  EXPECT_TRUE(batch.target->equal(torch::tensor({0.0F, 1.0F})));
  EXPECT_TRUE(numbers.test->get(0).target->equal(torch::tensor(1.0F)));
  rejects_to_open<InvalidArgument>("", {.target = "number", .num_classes = 2}, "data.num_classes = 2",
                                   "are numbers");
  write("y.npy", npy("|u1", "(10, 1)", std::string("\0\1\0\1\0\1\0\1\0\7", 10)));
  rejects_to_open("", {}, "sample 9 of array 'y'", "no sample is of class 2");
  EXPECT_EQ(open("numpy", "", {.num_classes = 8}).num_classes, 8);
  write("y.npy", npy("<f4", "(10,)", bytes_of_values(std::vector<float>(10, 1))));
  rejects_to_open("", {.target = "class"}, "array 'y'", "astype('int64')");
  EXPECT_EQ(open("numpy", "").num_classes, 0);
}

TEST_F(Tables, NpyIsReadInEitherOrder) {
  const std::string big("\x3f\x80\0\0\x40\0\0\0", 8);
  EXPECT_TRUE(parse_npy(npy(">f4", "(2,)", big)).equal(torch::tensor({1.0F, 2.0F})));
  EXPECT_TRUE(parse_npy(npy("<f4", "(2, 3)", bytes_of_values({1, 2, 3, 4, 5, 6})))
                  .equal(torch::tensor({1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F}).reshape({2, 3})));
  EXPECT_TRUE(parse_npy(npy("<f4", "(2, 3)", bytes_of_values({1, 4, 2, 5, 3, 6}), "True"))
                  .equal(torch::tensor({1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F}).reshape({2, 3})));
  EXPECT_TRUE(
      parse_npy(npy("<i2", "(2,)", std::string("\xff\xff\1\1", 4))).equal(torch::tensor({-1L, 257L})));
  EXPECT_TRUE(parse_npy(npy("<f2", "()", std::string("\0\x3c", 2))).equal(torch::tensor(1.0F)));
  EXPECT_TRUE(parse_npy(npy("|u1", "(1,)", "\xff")).equal(torch::tensor({255L})));
  EXPECT_TRUE(parse_npy(npy("|b1", "(2,)", std::string("\1\0", 2))).equal(torch::tensor({true, false})));
}

TEST_F(Tables, RejectsInvalidNpyBeforeAllocation) {
  const test::MemoryLimit limit(256 << 20);
  const auto reason = [](const std::string& content) -> std::string {
    try {
      parse_npy(content);
    } catch (const DataError& error) {
      return error.what();
    }
    return "none";
  };
  const std::string good = npy("<f4", "(2,)", "12345678");
  for (std::size_t kept = 0; kept < good.size(); ++kept)
    EXPECT_NE(reason(good.substr(0, kept)), "none") << kept;
  EXPECT_THAT(reason(npy("<c8", "(1,)", "12345678")), HasSubstr("<c8"));
  EXPECT_THAT(reason(npy("|O", "(1,)", "12345678")), HasSubstr("|O"));
  EXPECT_THAT(reason(npy("<f4", "(1000000000000,)", "12345678")), HasSubstr("1000000000000 items"));
  EXPECT_THAT(reason(npy("<f4", "(4611686018427387904, 4)", "")), HasSubstr("beyond all sizes"));
  EXPECT_THAT(reason(npy("<f4", "(0, 4611686018427387904, 4)", "")), HasSubstr("beyond all sizes"))
      << "empty, but with strides that cannot be";
  EXPECT_THAT(reason(npy("<f4", "(-1,)", "12345678")), HasSubstr("-1"));
}

TEST_F(Tables, ArraysOfAFolderAreSamples) {
  write("x.npy", npy("<f4", "(3, 2)", bytes_of_values({1, 2, 3, 4, 5, 6})));
  write("y.npy", npy("|u1", "(3,)", std::string("\0\4\1", 3)));
  const auto array = [&](const std::string& name) {
    const auto source = open_file(folder_ / (name + ".npy"));
    return NumpyArray{.name = name, .source = source, .offset = 0, .size = source->size()};
  };
  const NumpyDataset data({array("x"), array("y")}, {});
  EXPECT_EQ(data.size(), 3);
  EXPECT_THAT(data.labels().first_places(), ElementsAre(Pair(0, 0), Pair(1, 2), Pair(4, 1)));
  EXPECT_TRUE(data.get(1).input->equal(torch::tensor({3.0F, 4.0F})));
  EXPECT_TRUE(data.get(1).target->equal(torch::tensor(4L)));
  EXPECT_THROW(data.get(3), InvalidArgument);
  write("y.npy", npy("|u1", "(2,)", "12"));
  EXPECT_THAT(
      [&] {
        NumpyDataset({array("x"), array("y")}, {});
      },
      ThrowsMessage<DataError>(AllOf(HasSubstr("'y' of"), HasSubstr("2 samples"), HasSubstr("has 3"))));
  write("y.npy", npy("|i1", "(3,)", "\1\xff\1"));
  const NumpyDataset below({array("x"), array("y")}, {});
  const ClassLabels labels = below.labels();
  EXPECT_THAT(
      [&] {
        count_classes({{labels, [&](std::int64_t place) { return below.label_name(place); }}}, 0);
      },
      ThrowsMessage<DataError>(HasSubstr("sample 1 of array 'y'")));
  EXPECT_THAT([&] { NumpyDataset({array("x")}, {}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("no array 'y'")));
  write("x.npy", npy("<f4", "(3, 2)", bytes_of_values({1, 2, 3, 4, 5, 6}), "True"));
  EXPECT_THAT([&] { NumpyDataset({array("x")}, {.targets = {}}); },
              ThrowsMessage<DataError>(AllOf(HasSubstr("'x' of"), HasSubstr("Fortran"))));
}

TEST_F(Tables, BytesWithHeightAndWidthAreImages) {
  const auto array = [&](const std::string& shape, const std::string& values) {
    const auto source = write("x.npy", npy("|u1", shape, values));
    return NumpyArray{.name = "x", .source = source, .offset = 0, .size = source->size()};
  };
  const NumpyDataset grey({array("(2, 1, 2)", std::string("\0\xff\x33\0", 4))}, {.targets = {}});
  EXPECT_TRUE(at::allclose(*grey.get(0).input, torch::tensor({{0.0F, 1.0F}})));
  EXPECT_TRUE(at::allclose(*grey.get(1).input, torch::tensor({{0.2F, 0.0F}})));
  const std::string eight(8, '\xff');
  const NumpyDataset coloured({array("(1, 1, 4, 2)", eight)}, {.targets = {}});
  EXPECT_EQ(coloured.get(0).input->scalar_type(), at::kFloat);
  EXPECT_THAT(
      [&] { NumpyDataset({array("(1, 2, 4, 1)", eight)}, {.targets = {}}); },
      ThrowsMessage<DataError>(AllOf(HasSubstr("[2, 4, 1]"), HasSubstr("np.transpose(x, (0, 3, 1, 2))"))));
  const NumpyDataset tokens({array("(2, 4)", eight)}, {.targets = {}});
  EXPECT_EQ(tokens.get(0).input->scalar_type(), at::kLong);
}

/// Python's zipfile writes the same as np.savez.
TEST_F(Tables, ArchiveIsReadByRowsUnlessCompressed) {
  write("x.npy", npy("<f4", "(20, 1)", bytes_of_values(std::vector<float>(20, 7))));
  write("y.npy", npy("|u1", "(20,)", std::string(10, '\0') + std::string(10, '\1')));
  const auto zip = [&](const std::string& how) {
    const std::string script =
        "import zipfile,sys,os; os.chdir(sys.argv[1]); "
        "z=zipfile.ZipFile('a.npz','w',zipfile." +
        how +
        "); "
        "[z.open(zipfile.ZipInfo(n),'w',force_zip64=True).write(open(n,'rb').read()) if '" +
        how + "'=='ZIP_STORED' else z.write(n) for n in ('x.npy','y.npy')]; z.close()";
    ASSERT_EQ(test::run({"python3", "-c", script, folder_.path().string()}).exit_code, 0);
  };
  zip("ZIP_STORED");
  const DataSource source = open("numpy", "a.npz");
  EXPECT_EQ(source.train->size(), 18);
  EXPECT_EQ(source.num_classes, 2);
  EXPECT_EQ(indexed(source.train)->get(17).input->item<float>(), 7);
  std::filesystem::copy(folder_ / "a.npz", folder_ / "whole.npz");
  const auto size = std::filesystem::file_size(folder_ / "a.npz");
  for (std::uintmax_t kept = 0; kept < size; kept += 13) {
    std::filesystem::resize_file(folder_ / "a.npz", kept);
    EXPECT_THROW(open("numpy", "a.npz"), DataError) << kept;
    std::filesystem::copy(folder_ / "whole.npz", folder_ / "a.npz",
                          std::filesystem::copy_options::overwrite_existing);
  }
  zip("ZIP_DEFLATED");
  EXPECT_THAT([&] { open("numpy", "a.npz"); },
              ThrowsMessage<DataError>(AllOf(HasSubstr("a.npz"), HasSubstr("'x.npy' is compressed"))));
}

TEST_F(Tables, FolderOfArraysOpensByConfiguration) {
  std::filesystem::create_directories(folder_ / "train");
  std::filesystem::create_directories(folder_ / "val");
  for (const std::string part : {"train", "val"}) {
    write(part + "/x.npy", npy("<f4", "(3, 2)", bytes_of_values({1, 2, 3, 4, 5, 6})));
    write(part + "/y.npy", npy("<f4", "(3,)", bytes_of_values({1, 2, 3})));
  }
  const DataSource source = open("numpy", "");
  EXPECT_EQ(source.train->size(), 3);
  EXPECT_EQ(source.held_out, "validation");
  EXPECT_EQ(source.num_classes, 0);
  EXPECT_THAT(source.input_shape, ElementsAre(2));
}

}  // namespace
}  // namespace trireme::data
