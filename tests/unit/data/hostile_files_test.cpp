// Data files that take more memory or time than their size suggests, and texts in them that would control a
// terminal.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <zlib.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "tests/support/cpu_limit.h"
#include "tests/support/image_files.h"
#include "tests/support/memory_limit.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/data/idx_samples.h"
#include "tests/unit/data/tar_files.h"
#include "trireme/base/error.h"
#include "trireme/data/csv_dataset.h"
#include "trireme/data/internal/idx_file.h"
#include "trireme/data/internal/image_file.h"
#include "trireme/data/internal/npy.h"
#include "trireme/data/internal/record_layout.h"
#include "trireme/data/internal/tar_index.h"
#include "trireme/data/internal/token_reader.h"
#include "trireme/data/tar_dataset.h"

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// Different texts of 16 bytes with the same std::hash. The last 8 bytes of each are computed from the first
/// 8. libstdc++ uses MurmurHash64A (A. Appleby) with this number as its seed.
std::vector<std::string> keys_of_one_hash(std::size_t count) {
  constexpr std::uint64_t kFactor = 0xc6a4a7935bd1e995, kSeed = 0xc70f6907;
  const auto mixed = [](std::uint64_t word) { return word ^ word >> 47; };  // its own inverse
  std::uint64_t inverse = kFactor;                                          // of the factor, by Newton
  for (int i = 0; i < 5; ++i) inverse *= 2 - kFactor * inverse;
  std::vector<std::string> keys;
  for (std::uint64_t number = 0; keys.size() < count; ++number) {
    std::string key(16, '0');
    std::snprintf(key.data(), key.size(), "%08x", static_cast<unsigned>(number));
    std::uint64_t first = 0;
    std::memcpy(&first, key.data(), sizeof(first));
    const std::uint64_t state = (kSeed ^ 16 * kFactor ^ mixed(first * kFactor) * kFactor) * kFactor;
    const std::uint64_t second = mixed(state * inverse) * inverse;
    std::memcpy(key.data() + 8, &second, sizeof(second));
    if (key.find_first_of(std::string_view("\0./", 3)) == std::string::npos) keys.push_back(std::move(key));
  }
  return keys;
}

template <class Body>
std::string error_in(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_LT(std::string(error.what()).size(), 12'000U);
    return error.what();
  }
  return "no error";
}

/// The image in the four formats.
std::vector<std::string> in_all_formats(const test::Picture& picture) {
  return {test::jpeg_bytes(picture), test::png_bytes(picture), test::webp_bytes(picture),
          test::bmp_bytes(picture)};
}

/// A PNG chunk with its checksum.
std::string png_chunk(const std::string& type_and_content) {
  const auto number = [](std::uint32_t value) {
    std::string bytes;
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xff);
    return bytes;
  };
  const auto crc = crc32(0, reinterpret_cast<const Bytef*>(type_and_content.data()),
                         static_cast<uInt>(type_and_content.size()));
  return number(static_cast<std::uint32_t>(type_and_content.size()) - 4) + type_and_content +
         number(static_cast<std::uint32_t>(crc));
}

TEST(SecurityImages, HaveALimitOfPixels) {
  for (const std::string& image : in_all_formats(test::gradient(30, 40))) {
    EXPECT_EQ(decode_image(image, 1200).sizes(), (std::vector<std::int64_t>{3, 30, 40}));
    EXPECT_THAT(error_in([&] { decode_image(image, 1199); }),
                AllOf(HasSubstr("40x30 pixels, and at most 1199"), HasSubstr("data.most_pixels")));
  }
}

// Headers that announce 9480 x 9480 pixels, without any data.
TEST(SecurityImages, LimitPixelsByDefaultBeforeDecoding) {
  const test::Picture picture = test::gradient(8, 8);
  std::string jpeg = test::jpeg_bytes(picture), png = test::png_bytes(picture),
              bmp = test::bmp_bytes(picture);
  const std::size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  jpeg.replace(frame + 5, 4, "\x25\x08\x25\x08", 4);
  png.replace(8, 25, png_chunk("IHDR" + std::string("\0\0\x25\x08\0\0\x25\x08", 8) + png.substr(24, 5)));
  bmp.replace(18, 8, std::string("\x08\x25\0\0\x08\x25\0\0", 8));
  const test::MemoryLimit limit(64 << 20);
  for (const std::string& image : {jpeg, png, bmp})
    EXPECT_THAT(error_in([&] { decode_image(image); }), HasSubstr("9480x9480 pixels, and at most 89478485"));
}

TEST(SecurityImages, RecordsAndArchivesUseLimitOfDataset) {
  const std::string image = test::png_bytes(test::gradient(30, 40));
  const test::TemporaryFolder folder;
  const auto path = test::write_tar(folder / "a.tar", test::tar_member("a.png", image));
  const TarDataset whole({open_file(path)}, {}, Log()),
      limited({open_file(path)}, {.most_pixels = 1199}, Log());
  EXPECT_EQ(whole.get(0).input->size(2), 40);
  EXPECT_THAT(error_in([&] { limited.get(0); }), HasSubstr("at most 1199"));
  const RecordLayout layout{.fields = {{.form = FieldForm::kImage, .dtype = at::kByte, .shape = {-1}}}};
  const auto size = static_cast<std::int64_t>(image.size());
  const std::string record = std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + image;
  EXPECT_EQ(parse_record(layout, record).input->size(2), 40);
  EXPECT_THAT(error_in([&] { parse_record(layout, record, {}, 1199); }), HasSubstr("at most 1199"));
}

std::string jpeg_segment(char marker, const std::string& content) {
  const std::size_t size = content.size() + 2;
  return std::string("\xff") + marker + static_cast<char>(size >> 8) + static_cast<char>(size & 0xff) +
         content;
}

/// A progressive gray JPEG of 16 x 16 pixels: a scan of the means, and scans of one coefficient each.
std::string jpeg_of_scans(int scans) {
  std::string bytes =
      "\xff\xd8" + jpeg_segment('\xdb', std::string(1, '\0') + std::string(64, '\1')) +
      jpeg_segment('\xc2', std::string("\x08\0\x10\0\x10\x01\x01\x11\0", 9)) +
      jpeg_segment('\xc4', std::string("\0\1", 2) + std::string(15, '\0') + std::string(1, '\0')) +
      jpeg_segment('\xc4', std::string("\x10\1\1", 3) + std::string(14, '\0') + std::string("\xe0\0", 2)) +
      jpeg_segment('\xda', std::string("\1\1\0\0\0\0", 6)) + "\x0f";
  for (int i = 0; i + 1 < scans; ++i) {
    const char coefficient = static_cast<char>(1 + i % 63);
    const char bits = static_cast<char>(i < 63 ? 1 : 0x10);
    bytes += jpeg_segment('\xda', std::string("\1\1\0", 3) + coefficient + coefficient + bits) + "\xaa";
  }
  return bytes + "\xff\xd9";
}

TEST(SecurityImages, JpegsHaveALimitOfScans) {
  EXPECT_EQ(decode_image(jpeg_of_scans(kMaxScans)).size(1), 16);
  for (const int scans : {kMaxScans + 1, 400, 20'000})
    EXPECT_THAT(error_in([&] { decode_image(jpeg_of_scans(scans)); }),
                HasSubstr(text(scans, " scans, and at most 64")));
}

TEST(SecurityImages, TextsInPngsAreNotUnpacked) {
  const std::string plain(7'000'000, '\0');
  std::string packed(compressBound(plain.size()), '\0');
  uLongf size = packed.size();
  ASSERT_EQ(compress(reinterpret_cast<Bytef*>(packed.data()), &size,
                     reinterpret_cast<const Bytef*>(plain.data()), plain.size()),
            Z_OK);
  packed.resize(size);
  std::string png = test::png_bytes(test::gradient(9, 7));
  std::string texts;
  for (int i = 0; i < 100; ++i) texts += png_chunk("zTXta" + std::string(2, '\0') + packed);
  png.insert(33, texts);  // after the header
  const auto decode = [&] {
    const test::MemoryLimit limit(std::uint64_t{256} << 20);
    std::_Exit(decode_image(png).size(1) == 9 ? 0 : 1);
  };
  EXPECT_EXIT(decode(), testing::ExitedWithCode(0), "");
}

class SecurityTables : public testing::Test {
 protected:
  std::shared_ptr<const ByteSource> write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return open_file(folder_ / name);
  }
  std::string error_of_csv(const std::string& content, const CsvOptions& options = {}) const {
    return error_in([&] { read_csv(*write("t.csv", content), options); });
  }
  static std::string columns(int count, const std::string& name) {
    std::string line;
    for (int i = 0; i < count; ++i) line += name + std::to_string(i) + ",";
    line.back() = '\n';
    return line;
  }
  const test::TemporaryFolder folder_;
};

TEST_F(SecurityTables, LinesHaveALimitOfCells) {
  EXPECT_THAT(error_of_csv(std::string(16'000'000, ',')), HasSubstr("line 1: it has more than 262144 cells"));
  EXPECT_THAT(error_of_csv("a,b\n1," + std::string(300'000, ',')),
              HasSubstr("line 2: it has more than 262144 cells"));
}

TEST_F(SecurityTables, ManyColumnsAreReadInLinearTime) {
  constexpr int kColumns = 200'000;
  std::string row;
  for (int i = 0; i < kColumns; ++i) row += "1,";
  row.back() = '\n';
  const auto file = write("t.csv", columns(kColumns, "c") + row + row);
  const auto read = [&] {
    test::limit_cpu_time(30);
    std::_Exit(read_csv(*file, {}).columns.inputs.size() == kColumns - 1 ? 0 : 1);
  };
  EXPECT_EXIT(read(), testing::ExitedWithCode(0), "");
}

TEST_F(SecurityTables, ErrorsQuoteAFewEscapedNames) {
  const std::string many = columns(100'000, "\x1b[1m" + std::string(100, 'n')) + "1,2\n";
  EXPECT_THAT(error_of_csv(many, {.columns = {.inputs = {"zz"}}}),
              AllOf(HasSubstr("of 100000)"), HasSubstr("\\x1b[1m"), Not(HasSubstr("\x1b"))));
  EXPECT_THAT(error_of_csv("a,b\n1,\x1b]0;x\x07" + std::string(1000, 'y') + "\n"),
              AllOf(HasSubstr("'\\x1b]0;x\\x07yyy"), HasSubstr("(1006 bytes)"), Not(HasSubstr("\x1b"))));
}

TEST_F(SecurityTables, IdxFilesGrowByALimitedFactor) {
  std::ofstream(folder_ / "zeros.gz", std::ios::binary)
      << test::gzip(test::idx_bytes({1 << 20}, std::string(1 << 20, '\0')));
  EXPECT_EQ(read_idx(folder_ / "zeros.gz", 1).values.size(), std::size_t{1} << 20) << "small";
  const std::uint32_t many = 100 << 20;
  std::ofstream(folder_ / "bomb.gz", std::ios::binary)
      << test::gzip(test::idx_bytes({many}, std::string(many, '\0')));
  EXPECT_THAT(error_in([&] { read_idx(folder_ / "bomb.gz", 1); }),
              AllOf(HasSubstr("announces 104857600 values"), HasSubstr("at most 67108864")));
}

TEST_F(SecurityTables, ArraysHaveDimLimitAndEscapedHeaders) {
  const auto array = [](std::string dict) {
    dict.resize(1000, ' ');
    return std::string("\x93NUMPY\x01\x00\xe8\x03", 10) + dict + std::string(4, '\0');
  };
  std::string ones = "(";
  for (int i = 0; i < 65; ++i) ones += "1,";
  const std::string begin = "{'descr': '<f4', 'fortran_order': False, 'shape': ";
  EXPECT_THAT(error_in([&] { parse_npy(array(begin + ones + ")}")); }), HasSubstr("more than 64 dims"));
  EXPECT_THAT(error_in([&] { parse_npy(array("{'\x1b[2J': 1}")); }),
              AllOf(HasSubstr("\\x1b[2J"), Not(HasSubstr("\x1b"))));
  EXPECT_THAT(error_in([&] { parse_npy(array("{'descr': '\x1b[2J', ")); }), Not(HasSubstr("\x1b")));
}

TEST_F(SecurityTables, LinesOfDocumentsHaveALimit) {
  const std::filesystem::path path = folder_ / "a.jsonl";
  ByteNumbers bytes;
  std::ofstream(path) << "{\"text\": \"" << std::string(200'000, 'a') << "\"}\n\n{\"text\": \"b\"}";
  const TokenCensus census = take_census({.path = path, .form = TextForm::kJsonLines}, path, bytes);
  EXPECT_EQ(census.pieces, 2);
  EXPECT_EQ(census.tokens, 200'003);
  std::filesystem::resize_file(path, std::uint64_t{1} << 33);
  EXPECT_THAT(error_in([&] { take_census({.path = path, .form = TextForm::kJsonLines}, path, bytes); }),
              HasSubstr("a line of more than 67108864 bytes"));
}

TEST_F(SecurityTables, ArchiveSamplesHaveFieldLimitAndEscaping) {
  std::string many;
  for (int i = 0; i < 300; ++i) many += test::tar_member("a." + std::to_string(i), "1");
  const auto error_of = [&](const std::string& members) {
    const auto path = test::write_tar(folder_ / "a.tar", members);
    return error_in([&] { TarIndex::scan(*open_file(path)); });
  };
  EXPECT_THAT(error_of(many), HasSubstr("its sample has more than 256 fields"));
  const std::string name = "a\x1b[2J" + std::string(100'000, 'x') + ".cls";
  EXPECT_THAT(error_of(test::tar_pax("path", name) + test::tar_member("a", "no class")),
              AllOf(HasSubstr("'a\\x1b[2Jxxx"), Not(HasSubstr("\x1b"))));
  EXPECT_THAT(
      error_of(test::tar_pax("path", "b.\x1b[2J") + test::tar_member("a", "") + test::tar_member("c.d", "")),
      AllOf(HasSubstr("\\x1b[2J"), Not(HasSubstr("\x1b"))));
}

TEST_F(SecurityTables, ArchivesWithCollidingKeysTakeLinearTime) {
  std::string members;
  for (const std::string& key : keys_of_one_hash(200'000)) members += test::tar_header(key + ".x", 0);
  const auto path = test::write_tar(folder_ / "a.tar", members);
  const auto scan = [&] {
    test::limit_cpu_time(20);
    std::_Exit(TarIndex::scan(*open_file(path)).size() == 200'000 ? 0 : 1);
  };
  EXPECT_EXIT(scan(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace trireme::data
