#include <gtest/gtest.h>

#include "tests/support/image_files.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/data/internal/image_file.h"

namespace trireme::data {
namespace {

/// Image files, and their pixels as Pillow decodes them: tests/parity/image_reference.py.
checkpoint::TensorMap reference() {
  const std::filesystem::path folder = test::checkout("tests/parity/data");
  return checkpoint::load_safetensors(folder / "image_pillow.safetensors").tensors;
}

std::string bytes_of(const at::Tensor& file) {
  return {static_cast<const char*>(file.data_ptr()), static_cast<std::size_t>(file.numel())};
}

/// Compares all files whose names begin with `kind`. Returns their number.
int compare(const std::string& kind) {
  const checkpoint::TensorMap tensors = reference();
  const test::TemporaryFolder folder;
  int compared = 0;
  for (const auto& [name, pixels] : tensors) {
    if (!name.starts_with(kind) || !name.ends_with("/pixels")) continue;
    const std::string image = name.substr(0, name.find('/'));
    test::write_image(folder / image, bytes_of(tensors.at(image + "/file")));
    const at::Tensor found = read_image(folder / image);
    EXPECT_TRUE(found.equal(pixels)) << image << ": found\n" << found[0] << "\nexpected\n" << pixels[0];
    ++compared;
  }
  return compared;
}

TEST(ImageParity, EveryPngKindHasPixelsOfPillow) { EXPECT_EQ(compare("png_"), 58); }

TEST(ImageParity, EveryJpegKindHasPixelsOfPillow) { EXPECT_EQ(compare("jpeg_"), 9); }

}  // namespace
}  // namespace trireme::data
