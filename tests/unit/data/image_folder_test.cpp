#include "trireme/data/image_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>
#include <unistd.h>
#include <zlib.h>

#include "tests/support/image_files.h"
#include "tests/support/memory_limit.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/data/dataset.h"
#include "trireme/data/internal/image_file.h"
#include "trireme/data/tolerant.h"

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using trireme::test::bmp_bytes;
using trireme::test::BmpForm;
using trireme::test::gradient;
using trireme::test::jpeg_bytes;
using trireme::test::Picture;
using trireme::test::png_bytes;
using trireme::test::TemporaryFolder;
using trireme::test::webp_bytes;
using trireme::test::write_image;

at::Tensor tensor_of(const Picture& picture) {
  return torch::tensor(at::ArrayRef<std::uint8_t>(picture.pixels), at::kByte)
      .reshape({picture.height, picture.width, 3})
      .permute({2, 0, 1});
}

template <class Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

class ImageFile : public testing::Test {
 protected:
  at::Tensor read(const std::string& bytes) {
    write_image(path_, bytes);
    return read_image(path_);
  }
  std::string error_of_reading(const std::string& bytes) {
    return error_of([&] { read(bytes); });
  }
  const TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_ / "photo.jpg";
};

TEST_F(ImageFile, PngKeepsPixelsUnderAnyFileName) {
  const Picture picture = gradient(5, 7);
  EXPECT_TRUE(read(png_bytes(picture)).equal(tensor_of(picture)));
}

TEST_F(ImageFile, DecodedJpegIsCloseToOriginal) {
  const Picture picture = gradient(40, 56);
  const at::Tensor image = read(jpeg_bytes(picture));
  ASSERT_EQ(image.sizes(), (std::vector<std::int64_t>{3, 40, 56}));
  EXPECT_LE((image.to(at::kInt) - tensor_of(picture).to(at::kInt)).abs().max().item<int>(), 4);
}

TEST_F(ImageFile, WebpKeepsPixelsAndShowsDamage) {
  const Picture picture = gradient(9, 7);
  const std::string webp = webp_bytes(picture);
  EXPECT_TRUE(read(webp).equal(tensor_of(picture)));
  for (std::size_t kept = 12; kept < webp.size(); ++kept)
    EXPECT_THAT(error_of_reading(webp.substr(0, kept)),
                AllOf(HasSubstr(path_.string()), HasSubstr("WebP"), HasSubstr("cut short")))
        << kept;
}

TEST_F(ImageFile, BmpOfEitherRowOrderKeepsPixels) {
  const Picture picture = gradient(9, 7);  // rows of 7 pixels are padded
  for (const BmpForm& form :
       {BmpForm{}, BmpForm{.top_first = true}, BmpForm{.bits = 32}, BmpForm{.bits = 32, .compression = 3}}) {
    const std::string bmp = bmp_bytes(picture, form);
    EXPECT_TRUE(read(bmp).equal(tensor_of(picture))) << form.bits << " " << form.compression;
    for (std::size_t kept = 2; kept < bmp.size(); kept += kept < 60 ? 1 : 7)
      EXPECT_THAT(error_of_reading(bmp.substr(0, kept)), HasSubstr("cut short")) << kept;
  }
  const at::Tensor grey = read(bmp_bytes(picture, {.bits = 8}));
  for (int channel = 0; channel < 3; ++channel) EXPECT_TRUE(grey[channel].equal(tensor_of(picture)[0]));
}

TEST_F(ImageFile, UnsupportedBmpIsNamedBeforeAllocation) {
  const test::MemoryLimit limit(256 << 20);
  const Picture picture = gradient(4, 4);
  EXPECT_THAT(error_of_reading(bmp_bytes(picture, {.bits = 8, .compression = 1})),
              HasSubstr("8 bits with compression 1"));
  EXPECT_THAT(error_of_reading(bmp_bytes(picture, {.bits = 16})), HasSubstr("16 bits"));
  std::string bmp = bmp_bytes(picture);
  bmp.replace(18, 8, std::string("\0\x20\0\0\0\x20\0\0", 8));  // 8192 x 8192
  EXPECT_THAT(error_of_reading(bmp), HasSubstr("cut short"));
  bmp.replace(18, 8, std::string("\xff\xff\xff\xff\0\0\0\x80", 8));
  EXPECT_THAT(error_of_reading(bmp), HasSubstr("pixels"));
  std::string palette = bmp_bytes(gradient(4, 4, 20), {.bits = 8});
  palette[46] = 2;  // number of colors
  EXPECT_THAT(error_of_reading(palette), HasSubstr("of a palette of 2"));
}

TEST_F(ImageFile, GreyJpegHasThreeEqualChannels) {
  const at::Tensor image = read(jpeg_bytes(gradient(8, 8), TJSAMP_GRAY));
  EXPECT_TRUE(image[0].equal(image[1]));
  EXPECT_TRUE(image[0].equal(image[2]));
}

TEST_F(ImageFile, DamagedFilesNameReasonOfDecoder) {
  const std::string jpeg = jpeg_bytes(gradient(64, 64)), png = png_bytes(gradient(64, 64));
  EXPECT_THAT(error_of_reading(jpeg.substr(0, jpeg.size() / 2)),
              AllOf(HasSubstr(path_.string()), HasSubstr("end")));
  EXPECT_THAT(error_of_reading(png.substr(0, png.size() / 2)),
              AllOf(HasSubstr(path_.string()), HasSubstr("decode")));
  EXPECT_THAT(error_of_reading("GIF89a, a picture of another kind"),
              AllOf(HasSubstr(path_.string()), HasSubstr("no JPEG, PNG, WebP or BMP")));
  EXPECT_THAT(error_of_reading(""), HasSubstr("0 bytes"));
  EXPECT_THAT(error_of([&] { read_image(folder_ / "absent.png"); }), HasSubstr("absent.png"));
}

TEST_F(ImageFile, TruncationIsErrorOrKeepsAllPixels) {
  const Picture picture = gradient(9, 7);
  const std::string png = png_bytes(picture), jpeg = jpeg_bytes(picture);
  const std::size_t end_of_pixels = png.find("IEND") - 4;
  const auto next = [](std::size_t kept, const std::string& file) {
    return kept + (kept + 40 < file.size() ? 11 : 1);
  };
  for (std::size_t kept = 0; kept < png.size(); kept = next(kept, png)) {
    if (kept >= end_of_pixels) {
      EXPECT_TRUE(read(png.substr(0, kept)).equal(tensor_of(picture))) << kept;
    } else {
      EXPECT_THAT(error_of_reading(png.substr(0, kept)), HasSubstr("cannot decode")) << kept;
    }
  }
  for (std::size_t kept = 0; kept < jpeg.size(); kept = next(kept, jpeg))
    EXPECT_THAT(error_of_reading(jpeg.substr(0, kept)), HasSubstr("cannot decode")) << kept;
}

TEST_F(ImageFile, FlippedBitOfAPngIsNoticed) {
  std::string png = png_bytes(gradient(64, 64));
  png[png.size() / 2] = static_cast<char>(png[png.size() / 2] ^ 1);
  EXPECT_THAT(error_of_reading(png), AllOf(HasSubstr(path_.string()), HasSubstr("decode")));
}

/// The PNG with this width and height in its header.
std::string with_size(std::string png, const std::string& big_endian) {
  // These fields follow signature, length and "IHDR". The checksum of the chunk comes after them.
  png.replace(16, 4, big_endian).replace(20, 4, big_endian);
  const auto crc =
      static_cast<std::uint32_t>(::crc32(0, reinterpret_cast<const unsigned char*>(png.data()) + 12, 17));
  for (int i = 0; i < 4; ++i) png[29 + static_cast<std::size_t>(i)] = static_cast<char>(crc >> (24 - 8 * i));
  return png;
}

TEST_F(ImageFile, RejectsExcessiveAnnouncedSizeBeforeAllocation) {
  const std::string png = with_size(png_bytes(gradient(1, 1)), {0, 0, 0x75, 0x30});
  EXPECT_THAT(error_of_reading(png), AllOf(HasSubstr("30000x30000"), HasSubstr("89478485")));
}

/// Peak memory of the process so far.
std::int64_t peak_kib() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  return used.ru_maxrss;
}

TEST_F(ImageFile, RejectsTooShortPngBeforeAllocation) {
  const std::string png = with_size(png_bytes(gradient(1, 1)), {0, 0, 0x20, 0});
  const test::MemoryLimit limit(64 << 20);
  EXPECT_THAT(error_of_reading(png), AllOf(HasSubstr("cut short"), HasSubstr("8192 rows")));
}

TEST_F(ImageFile, MissingJpegPixelsAreNotPaintedOver) {
  std::string jpeg = jpeg_bytes(gradient(8, 8));
  const std::size_t frame = jpeg.find("\xff\xc0");  // height and width follow marker, length and precision
  ASSERT_NE(frame, std::string::npos);
  jpeg.replace(frame + 5, 4, "\x20\0\x20\0", 4);
  const std::int64_t before = peak_kib();
  EXPECT_THAT(error_of_reading(jpeg), HasSubstr("cannot decode"));
  EXPECT_LT(peak_kib() - before, 128 << 10) << "of 192 MiB";
}

class ImageFolderTest : public testing::Test {
 protected:
  void put(const std::string& name, int offset) {
    write_image(folder_ / name, png_bytes(gradient(4, 4, offset)));
  }
  int offset_of(const Dataset& images, std::int64_t index) {
    return (*images.get(index).input)[0][0][0].item<int>();
  }
  const TemporaryFolder folder_;
};

TEST_F(ImageFolderTest, ClassesAndImagesFollowTheirNames) {
  put("dog/2.png", 4);
  put("dog/1.PNG", 3);
  put("cat/deeper/b.jpeg", 2);
  put("cat/a.jpg", 1);
  write_image(folder_ / "cat" / "Thumbs.db", "not an image, and not called one");
  const ImageFolder images(folder_.path(), Undecodable::kError, Log());
  EXPECT_THAT(images.classes(), ElementsAre("cat", "dog"));
  ASSERT_EQ(images.size(), 4);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(offset_of(images, i), i + 1);
    EXPECT_EQ(images.get(i).target->item<std::int64_t>(), i / 2);
  }
}

TEST_F(ImageFolderTest, HiddenFilesAreNoSamplesOrClasses) {
  put("cat/a.png", 1);
  put("cat/.ipynb_checkpoints/b.png", 2);
  put(".ipynb_checkpoints/a.png", 3);
  put("__MACOSX/cat/a.png", 4);
  write_image(folder_ / "cat" / "._a.png", "x");
  write_image(folder_ / "cat" / ".DS_Store", "x");
  const ImageFolder images(folder_.path(), Undecodable::kError, Log());
  EXPECT_EQ(images.left_out(), "");
  EXPECT_THAT(images.classes(), ElementsAre("cat"));
  EXPECT_EQ(images.size(), 1);
}

TEST_F(ImageFolderTest, KnownTypesAreSamplesAndOthersCounted) {
  put("cat/1.png", 1);
  write_image(folder_ / "cat/2.webp", webp_bytes(gradient(4, 4, 2)));
  write_image(folder_ / "cat/3.BMP", bmp_bytes(gradient(4, 4, 3)));
  for (const char* name : {"a.gif", "b.GIF", "c.tiff", "deep/d.txt", "deep/README"})
    write_image(folder_ / "cat" / name, "x");
  put("beside.png", 4);
  put("other/5.png", 5);
  std::filesystem::create_directory_symlink(folder_ / "other", folder_ / "cat/link");
  std::filesystem::create_directory_symlink(folder_ / "other", folder_ / "linked");
  std::filesystem::create_symlink(folder_ / "other/5.png", folder_ / "cat/4.png");
  const ImageFolder images(folder_.path(), Undecodable::kError, Log());
  EXPECT_THAT(images.classes(), ElementsAre("cat", "linked", "other"));
  EXPECT_EQ(images.size(), 6);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(offset_of(images, i), i + 1);
  EXPECT_EQ(offset_of(images, 3), 5) << "a link to a file is followed, and one to the folder of a class";
  EXPECT_THAT(images.left_out(),
              AllOf(HasSubstr("left out 7 files in " + folder_.path().string() + ": .gif 2, "),
                    HasSubstr(".tiff 1"), HasSubstr(".txt 1"), HasSubstr("without an extension 1"),
                    HasSubstr("images in no folder of a class 1"), HasSubstr("links to folders 1")));
}

TEST_F(ImageFolderTest, ClassWithoutImagesIsNamedWithContents) {
  put("cat/1.png", 1);
  write_image(folder_ / "dog" / "1.gif", "x");
  EXPECT_THAT(error_of([&] { ImageFolder(folder_.path(), Undecodable::kError, Log()); }),
              AllOf(HasSubstr("no image in " + (folder_ / "dog").string()), HasSubstr(".gif 1")));
}

TEST_F(ImageFolderTest, ErrorShowsTheExpectedLayout) {
  EXPECT_THAT(error_of([&] { ImageFolder(folder_.path(), Undecodable::kError, Log()); }),
              AllOf(HasSubstr("no class"), HasSubstr("FOLDER/CLASS/NAME.jpg")));
  std::filesystem::create_directories(folder_ / "empty");
  EXPECT_THAT(error_of([&] { ImageFolder(folder_.path(), Undecodable::kError, Log()); }),
              AllOf(HasSubstr("no image"), HasSubstr("empty")));
  EXPECT_THAT(error_of([&] { ImageFolder(folder_ / "absent", Undecodable::kError, Log()); }),
              HasSubstr("absent"));
}

TEST_F(ImageFolderTest, UndecodableImageIsErrorWithAdvice) {
  put("cat/a.png", 1);
  write_image(folder_ / "cat" / "b.png", "nonsense");
  const auto images = std::make_shared<ImageFolder>(folder_.path(), Undecodable::kError, Log());
  EXPECT_EQ(offset_of(*images, 0), 1);
  EXPECT_THAT(error_of([&] { with_retries(images, {})->get(1); }),
              AllOf(HasSubstr("b.png"), HasSubstr("data.undecodable")));
  EXPECT_THROW(images->encoded(1), DataError);
}

TEST_F(ImageFolderTest, SkippedImageIsReplacedAndNamedOnce) {
  put("cat/a.png", 1);
  write_image(folder_ / "cat" / "b.png", "nonsense");
  write_image(folder_ / "cat" / "c.png", "nonsense");
  const auto images =
      with_retries(std::make_shared<ImageFolder>(folder_.path(), Undecodable::kSkip, Log()), {.skip = true});
  testing::internal::CaptureStderr();
  EXPECT_EQ(offset_of(*images, 1), 1) << "the first follows the last";
  EXPECT_EQ(offset_of(*images, 1), 1);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said,
              AllOf(HasSubstr("b.png"), HasSubstr("the next one stands in for it"), HasSubstr("warning")));
  EXPECT_EQ(said.find("b.png: "), said.rfind("b.png: ")) << "said once";
}

TEST_F(ImageFolderTest, CircularLinkIsNamedOrSkipped) {
  put("cat/a.png", 1);
  std::filesystem::create_symlink("b.png", folder_ / "cat/b.png");
  std::filesystem::create_symlink("loop", folder_ / "loop");
  EXPECT_THAT(error_of([&] { ImageFolder(folder_.path(), Undecodable::kError, Log()); }),
              AllOf(HasSubstr((folder_ / "loop").string()), HasSubstr("symbolic links"),
                    HasSubstr("data.undecodable")));
  testing::internal::CaptureStderr();
  const ImageFolder images(folder_.path(), Undecodable::kSkip, Log("images"));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(images.classes(), ElementsAre("cat"));
  EXPECT_EQ(images.size(), 1);
  EXPECT_THAT(said, AllOf(HasSubstr("loop"), HasSubstr("b.png"), HasSubstr("left out")));
}

TEST_F(ImageFolderTest, UnreadableFolderIsNamedOrSkipped) {
  put("cat/a.png", 1);
  put("cat/locked/b.png", 2);
  put("dog/c.png", 3);
  std::filesystem::permissions(folder_.path(), std::filesystem::perms(0755));
  std::filesystem::permissions(folder_ / "cat/locked", std::filesystem::perms::none);
  const bool is_root = ::geteuid() == 0;
  constexpr ::uid_t kNobody = 65534;  // permissions apply to this user
  ASSERT_EQ(is_root ? ::seteuid(kNobody) : 0, 0);
  const std::string refused = error_of([&] { ImageFolder(folder_.path(), Undecodable::kError, Log()); });
  const ImageFolder images(folder_.path(), Undecodable::kSkip, Log("images", LogLevel::kError));
  ASSERT_EQ(is_root ? ::seteuid(0) : 0, 0);
  std::filesystem::permissions(folder_ / "cat/locked", std::filesystem::perms(0755));
  EXPECT_THAT(refused, AllOf(HasSubstr((folder_ / "cat/locked").string()), HasSubstr("Permission denied")));
  EXPECT_EQ(images.size(), 2);
}

class ImageFolderSource : public ImageFolderTest {
 protected:
  void put_classes(const std::string& split, int images) {
    for (int i = 0; i < images; ++i) {
      for (const char* name : {"cat", "dog"}) put(text(split, name, "/", i, ".png"), 10 * i);
    }
  }
  DataSource open(const std::vector<std::string>& augment = {}) {
    return open_data(
        {.name = "image_folder", .path = folder_.path().string(), .image_size = 4, .augment = augment}, 1);
  }
};

TEST_F(ImageFolderSource, TakesTheSplitsThatTheFolderHas) {
  put_classes("train/", 3);
  put_classes("val/", 2);
  const DataSource source = open();
  EXPECT_EQ(source.train->size(), 6);
  EXPECT_EQ(source.test->size(), 4);
  EXPECT_EQ(source.held_out, "validation");
  EXPECT_EQ(source.num_classes, 2);
  EXPECT_EQ(source.input_shape, (std::vector<std::int64_t>{3, 4, 4}));
  const at::Tensor image = indexed(source.train)->get(0).input;
  // The first pixel of the gradient is black. This is its value in the normalized image.
  EXPECT_NEAR(image[0][0][0].item<double>(), -0.485 / 0.229, 1e-4);
}

TEST_F(ImageFolderSource, NotesFilesLeftOutOfEachSplit) {
  put_classes("train/", 3);
  put_classes("val/", 2);
  write_image(folder_ / "train/cat/x.gif", "x");
  write_image(folder_ / "val/dog/y.txt", "x");
  EXPECT_THAT(open().notes, ElementsAre(text("left out 1 file in ", (folder_ / "train").string(), ": .gif 1"),
                                        text("left out 1 file in ", (folder_ / "val").string(), ": .txt 1")));
}

TEST_F(ImageFolderSource, FoldersCalledAsSplitsAreNoClasses) {
  for (const char* name : {"Train/a", "Train/b", "valid/a", "valid/b"}) put(text(name, "/1.png"), 1);
  EXPECT_THAT(error_of([&] { open(); }),
              AllOf(HasSubstr("Train, valid"), HasSubstr("names of splits and not of classes")));
}

TEST_F(ImageFolderSource, HoldsOutEveryTenthImageWithoutSplit) {
  put_classes("", 10);
  const DataSource source = open();
  EXPECT_EQ(source.train->size(), 18);
  EXPECT_EQ(source.test->size(), 2);
  EXPECT_TRUE(source.test->get(0).input->equal(source.test->get(1).input)) << "the tenth of each class";
}

TEST_F(ImageFolderSource, AugmentsTheTrainingImagesAlone) {
  put_classes("train/", 4);
  put_classes("test/", 4);
  for (const std::vector<std::string>& augment :
       std::vector<std::vector<std::string>>{{"crop", "flip"}, {"resized_crop"}}) {
    const DataSource source = open(augment);
    EXPECT_EQ(source.held_out, "test");
    EXPECT_EQ(indexed(source.train)->get(0).input->sizes(), source.input_shape);
    EXPECT_FALSE(indexed(source.train)
                     ->in_epoch(0)
                     ->get(3)
                     .input->equal(indexed(source.train)->in_epoch(1)->get(3).input));
    EXPECT_EQ(source.test->in_epoch(1), nullptr) << "the same in every epoch";
  }
}

TEST_F(ImageFolderSource, RejectsSplitsThatDoNotFit) {
  put_classes("train/", 2);
  EXPECT_THAT(error_of([&] { open(); }), HasSubstr("none of val, validation, test"));
  put_classes("val/", 2);
  put("val/horse/1.png", 1);
  EXPECT_THAT(error_of([&] { open(); }), HasSubstr("train lacks horse"));
  for (int i = 0; i < 10; ++i) put(text("train/kind", i, "/1.png"), 1);
  EXPECT_THAT(error_of([&] { open(); }), AllOf(HasSubstr("train lacks horse"),
                                               HasSubstr("val lacks kind0, kind1"), HasSubstr("and 2 more")));
  EXPECT_THROW(open_data({.name = "image_folder"}), InvalidArgument) << "no data.path";
}

}  // namespace
}  // namespace trireme::data
