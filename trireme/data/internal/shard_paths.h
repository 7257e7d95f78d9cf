#pragma once
// Which files make up the splits of a data set, from data.path and data.test_path. Stateless.

#include <string>
#include <string_view>
#include <vector>

#include "trireme/data/dataset.h"

namespace trireme::data {

/// "a-{00..02}.tar" and "{a,b}.tar" as the shell has them: numbers keep the width of the first. Throws
/// InvalidArgument for braces that are not closed, in each other, or of more than a million.
std::vector<std::string> expand_braces(const std::string& pattern);

struct SplitPaths {
  std::vector<std::string> train, test;  ///< no test: it is to be held out of the training samples
  std::string held_out = "validation";
};

/// data.path is a file, a pattern, several of them with "::" between, or a folder. Of a folder: the files in
/// its folder train, or that begin with "train", and those of val, validation or test; else all of its files.
/// Throws DataError where there is none of that extension (".tar").
SplitPaths find_splits(const DataOptions& options, std::string_view extension);

/// Every tenth sample is held out. Throws DataError: fewer than ten.
struct HeldOut {
  std::shared_ptr<const Dataset> train, test;
};
HeldOut hold_out_tenth(const std::shared_ptr<const Dataset>& whole, const std::string& name);

}  // namespace trireme::data
