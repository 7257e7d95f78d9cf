#include "trireme/data/internal/shard_paths.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>

#include "trireme/base/error.h"
#include "trireme/data/decorators.h"

namespace trireme::data {
namespace {
namespace fs = std::filesystem;

constexpr std::size_t kMaxShards = 1'000'000;

bool all_digits(std::string_view word) {
  return !word.empty() && word.size() <= 18 &&
         std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; });
}

std::int64_t as_number(std::string_view digits) {
  std::int64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}

/// The alternatives inside one pair of braces.
std::vector<std::string> alternatives(const std::string& inside, const std::string& pattern) {
  const std::size_t dots = inside.find("..");
  if (dots == std::string::npos) return split(inside, ',');
  const std::string first = inside.substr(0, dots), last = inside.substr(dots + 2);
  require(all_digits(first) && all_digits(last) && as_number(first) <= as_number(last), "{", inside, "} in ",
          pattern, " is no range; expected {000..123}");
  require(as_number(last) - as_number(first) < static_cast<std::int64_t>(kMaxShards), "{", inside, "} in ",
          pattern, " are more than ", kMaxShards, " files");
  std::vector<std::string> words;
  for (std::int64_t number = as_number(first); number <= as_number(last); ++number) {
    std::string digits = std::to_string(number);
    if (digits.size() < first.size()) digits.insert(0, first.size() - digits.size(), '0');
    words.push_back(std::move(digits));
  }
  return words;
}

/// Files in a folder whose names have this prefix and extension.
std::vector<std::string> listed(const fs::path& folder, std::string_view prefix, std::string_view extension) {
  std::vector<std::string> found;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code ignored;
    if (name.starts_with(prefix) && name.ends_with(extension) && entry->is_regular_file(ignored))
      found.push_back(entry->path().string());
  }
  if (error) throw DataError(text("cannot list ", folder.string(), ": ", error.message()));
  std::ranges::sort(found);
  return found;
}

std::vector<std::string> expand_list(const std::string& list) {
  std::vector<std::string> paths;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find("::", begin), list.size());
    for (std::string& path : expand_braces(list.substr(begin, end - begin))) paths.push_back(std::move(path));
    begin = end + 2;
  }
  return paths;
}

SplitPaths in_folder(const fs::path& folder, std::string_view extension) {
  std::error_code ignored;
  const bool folders = fs::is_directory(folder / "train", ignored);
  const auto part = [&](const char* name) {
    if (!folders) return listed(folder, name, extension);
    return fs::is_directory(folder / name, ignored) ? listed(folder / name, "", extension)
                                                    : std::vector<std::string>();
  };
  SplitPaths splits{.train = part("train"), .test = {}};
  if (splits.train.empty())
    splits.train = listed(folder, "", extension);
  else if (splits.test = part("val"); splits.test.empty())
    splits.test = part("validation");
  if (splits.test.empty() && !(splits.test = part("test")).empty()) splits.held_out = "test";
  if (splits.train.empty()) throw DataError(text("there is no ", extension, " file in ", folder.string()));
  return splits;
}

}  // namespace

std::vector<std::string> expand_braces(const std::string& pattern) {
  const std::size_t open = pattern.find('{');
  const std::size_t close = pattern.find('}', open == std::string::npos ? 0 : open);
  require((open == std::string::npos) == (close == std::string::npos), "the braces in ", pattern,
          " are not closed");
  if (open == std::string::npos) return {pattern};
  const std::string inside = pattern.substr(open + 1, close - open - 1);
  require(inside.find('{') == std::string::npos, "braces in braces are not read: ", pattern);
  std::vector<std::string> paths;
  const std::vector<std::string> rests = expand_braces(pattern.substr(close + 1));
  for (const std::string& word : alternatives(inside, pattern)) {
    for (const std::string& rest : rests) paths.push_back(pattern.substr(0, open) + word + rest);
    require(paths.size() <= kMaxShards, pattern, " stands for more than ", kMaxShards, " files");
  }
  return paths;
}

SplitPaths find_splits(const DataOptions& options, std::string_view extension) {
  require(!options.path.empty(), "data.name = \"", options.name,
          "\" needs data.path: a folder, a file or a pattern");
  std::error_code ignored;
  const auto whole = [&](const std::string& path) {
    return fs::is_directory(path, ignored) ? in_folder(path, extension)
                                           : SplitPaths{.train = expand_list(path), .test = {}};
  };
  SplitPaths splits = whole(options.path);
  if (options.test_path.empty()) return splits;
  splits.test = whole(options.test_path).train;
  splits.held_out = "test";
  return splits;
}

HeldOut hold_out_tenth(const std::shared_ptr<const Dataset>& whole, const std::string& name) {
  std::vector<std::int64_t> train, held_out;
  for (std::int64_t i = 0; i < whole->size(); ++i) (i % 10 == 9 ? held_out : train).push_back(i);
  if (held_out.empty()) {
    throw DataError(text(whole->size(), " samples of ", name,
                         " cannot be split: ten at least are needed, or data.test_path"));
  }
  return {.train = std::make_shared<SubsetDataset>(whole, std::move(train)),
          .test = std::make_shared<SubsetDataset>(whole, std::move(held_out))};
}

}  // namespace trireme::data
