#pragma once
// Functions with which the rows of data_table.cpp open a data set, of rows that have a file of their own.

#include <cstdint>

#include "trireme/base/log.h"
#include "trireme/data/dataset.h"
#include "trireme/data/pack.h"

namespace trireme::data {

struct Opening {
  const DataOptions& options;
  std::uint64_t seed = 0;
  const Log& log;
};

/// Folders of image files: FOLDER/train and FOLDER/val (or validation, or test), or one folder of
/// classes, of which every tenth image is held out. Images are resized, cropped and normalised.
DataSource open_image_folder(const Opening& opening);
/// The same with each image as the bytes of its file.
Packable packable_image_folder(const Opening& opening);

/// Opens a folder that `trireme data pack` has made.
DataSource open_packed(const Opening& opening);

/// Images of any size, u8 (3, height, width), with class numbers.
struct ImageSplits {
  std::shared_ptr<const Dataset> train, test;
  std::string held_out;
};
/// The same resized, cropped, normalised, and for training augmented, by the options; classes are not
/// counted.
DataSource images_brought_to_size(const ImageSplits& splits, const Opening& opening);

/// Transforms the training images, all of source.input_shape, by the options; `black` is their value of
/// black.
void augment(DataSource& source, const Opening& opening, double black);

/// Tables as text, and arrays of NumPy.
DataSource open_csv(const Opening& opening);
DataSource open_numpy(const Opening& opening);

/// Shards in the layout of WebDataset, as docs/data.md has it.
DataSource open_webdataset(const Opening& opening);

}  // namespace trireme::data
