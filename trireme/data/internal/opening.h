#pragma once
// What the rows of data_table.cpp open a data set with, and those rows that have a file of their own.

#include <cstdint>

#include "trireme/base/log.h"
#include "trireme/data/dataset.h"

namespace trireme::data {

struct Opening {
  const DataOptions& options;
  std::uint64_t seed = 0;
  const Log& log;
};

/// Folders of JPEG and PNG files: FOLDER/train and FOLDER/val (or validation, or test), or one folder of
/// classes, of which every tenth image is held out. Images are resized, cropped and normalised.
DataSource open_image_folder(const Opening& opening);

}  // namespace trireme::data
