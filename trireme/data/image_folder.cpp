#include "trireme/data/image_folder.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>
#include <system_error>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/data/content_digest.h"
#include "trireme/data/internal/image_file.h"
#include "trireme/data/internal/stacked_targets.h"

namespace trireme::data {
namespace fs = std::filesystem;
namespace {

constexpr const char* kLayout =
    "expected FOLDER/CLASS/NAME.jpg (.jpeg, .png, .webp, .bmp), one folder per class";

/// The extension in lower case, with its dot.
std::string extension_of(const fs::path& path) {
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return extension;
}

bool is_image(const fs::path& path) {
  const std::span<const std::string_view> known = image_extensions();
  return std::ranges::find(known, std::string_view(extension_of(path))) != known.end();
}

/// Files that operating systems and programs create next to a user's files.
bool is_hidden(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with('.') || name == "__MACOSX";
}

/// Files that are not samples, counted by kind.
class LeftOut {
 public:
  void count(const std::string& kind) { ++counts_[kind]; }
  void count_file(const fs::path& path) {
    const std::string extension = extension_of(path);
    count(extension.empty() ? "without an extension" : extension);
  }
  /// ".gif 3, .txt 1", the most frequent first; empty: none.
  std::string shown() const {
    std::vector<std::pair<std::string, std::int64_t>> kinds(counts_.begin(), counts_.end());
    std::ranges::stable_sort(kinds, std::greater(), [](const auto& kind) { return kind.second; });
    std::vector<std::string> parts;
    for (const auto& [kind, count] : kinds) parts.push_back(text(kind, ' ', count));
    return join(parts);
  }
  std::int64_t total() const {
    std::int64_t sum = 0;
    for (const auto& [kind, count] : counts_) sum += count;
    return sum;
  }

 private:
  std::map<std::string, std::int64_t> counts_;
};

/// Lists folders. An unreadable entry is an error, or is skipped with a warning.
class Listing {
 public:
  Listing(Undecodable unreadable, const Log& log) : unreadable_(unreadable), log_(log) {}

  /// The folders in `root`, which has to be readable. Images directly in `root` have no class.
  std::vector<fs::path> folders(const fs::path& root) {
    std::vector<fs::path> found;
    std::error_code error;
    fs::directory_iterator entry(root, error);
    for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
      if (is_hidden(entry->path())) continue;
      if (is(fs::file_type::directory, *entry))
        found.push_back(entry->path());
      else if (is_image(entry->path()))
        left_out_.count("images in no folder of a class");
    }
    if (error) throw DataError(text("cannot list ", root.string(), ": ", error.message()));
    std::sort(found.begin(), found.end());
    return found;
  }

  /// Image files in `folder` and the folders in it; links to folders are not followed.
  std::vector<fs::path> images(const fs::path& folder) {
    std::vector<fs::path> found, folders = {folder};
    while (!folders.empty()) {
      const fs::path next = std::move(folders.back());
      folders.pop_back();
      std::error_code error;
      fs::directory_iterator entry(next, error);
      for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
        std::error_code ignored;
        if (is_hidden(entry->path())) continue;
        if (entry->symlink_status(ignored).type() == fs::file_type::directory)
          folders.push_back(entry->path());
        else
          take_file(*entry, found);
      }
      if (error) leave_out(next, error);
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  const LeftOut& left_out() const { return left_out_; }

 private:
  void take_file(const fs::directory_entry& entry, std::vector<fs::path>& images) {
    if (!is_image(entry.path())) {
      const bool is_link_to_folder = entry.is_symlink() && is(fs::file_type::directory, entry);
      is_link_to_folder ? left_out_.count("links to folders") : left_out_.count_file(entry.path());
    } else if (is(fs::file_type::regular, entry)) {
      images.push_back(entry.path());
    } else {
      left_out_.count("links that lead to no file");
    }
  }

  /// Follows links. A link without a target has no type.
  bool is(fs::file_type type, const fs::directory_entry& entry) const {
    std::error_code error;
    const fs::file_type found = entry.status(error).type();
    if (error && found != fs::file_type::not_found) leave_out(entry.path(), error);
    return found == type;
  }

  void leave_out(const fs::path& path, const std::error_code& reason) const {
    const std::string what = text("cannot read ", path.string(), ": ", reason.message());
    if (unreadable_ == Undecodable::kError)
      throw DataError(text(what, "; remove it, or set data.undecodable = \"skip\""));
    log_.warning(what, "; it is left out");
  }

  const Undecodable unreadable_;
  const Log& log_;
  LeftOut left_out_;
};

struct ImagePath {
  fs::path path;
  std::int64_t label = 0;
};

}  // namespace

struct ImageFolder::State {
  State(Undecodable how, const Log& where, std::int64_t pixels)
      : undecodable(how), log(where), most_pixels(pixels) {}

  void list(const fs::path& folder_of_classes) {
    root = folder_of_classes;
    Listing listing(undecodable, log);
    for (const fs::path& folder : listing.folders(root)) {
      const std::vector<fs::path> paths = listing.images(folder);
      if (paths.empty())
        throw DataError(text("no image in ", folder.string(), "; ", kLayout, left_out_in(listing)));
      for (const fs::path& path : paths) images.push_back({path, static_cast<std::int64_t>(classes.size())});
      classes.push_back(folder.filename().string());
    }
    if (classes.empty())
      throw DataError(text("no class in ", root.string(), "; ", kLayout, left_out_in(listing)));
    const LeftOut& found = listing.left_out();
    if (found.total() > 0)
      left_out = text("left out ", found.total(), found.total() == 1 ? " file in " : " files in ",
                      root.string(), ": ", found.shown());
  }

  static std::string left_out_in(const Listing& listing) {
    return listing.left_out().total() == 0 ? "" : text("; left out so far: ", listing.left_out().shown());
  }

  const ImagePath& at(std::int64_t index) const {
    const auto size = static_cast<std::int64_t>(images.size());
    require(index >= 0 && index < size, "image ", index, " of ", size, " was asked for");
    return images[static_cast<std::size_t>(index)];
  }

  const Undecodable undecodable;
  const Log log;
  const std::int64_t most_pixels;
  fs::path root;
  std::vector<ImagePath> images;
  std::vector<std::string> classes;
  std::string left_out;
};

ImageFolder::ImageFolder(const fs::path& root, Undecodable undecodable, const Log& log,
                         std::int64_t most_pixels)
    : state_(std::make_unique<State>(undecodable, log, most_pixels)) {
  state_->list(root);
}

ImageFolder::~ImageFolder() = default;

std::int64_t ImageFolder::size() const { return static_cast<std::int64_t>(state_->images.size()); }

const std::vector<std::string>& ImageFolder::classes() const { return state_->classes; }

const std::string& ImageFolder::left_out() const { return state_->left_out; }

Example ImageFolder::get(std::int64_t index) const {
  const ImagePath& image = state_->at(index);
  return {read_image(image.path, state_->most_pixels), at::scalar_tensor(image.label, at::kLong)};
}

Fields ImageFolder::get_targets(std::span<const std::int64_t> indices) const {
  return stacked_targets(indices, [&](std::int64_t index) -> Fields {
    return at::scalar_tensor(state_->at(index).label, at::kLong);
  });
}

Example ImageFolder::encoded(std::int64_t index) const {
  const ImagePath& image = state_->at(index);
  const std::string content = read_image_file(image.path);
  decode_image_file(content, image.path, state_->most_pixels);
  const at::Tensor bytes = at::empty({static_cast<std::int64_t>(content.size())}, at::kByte);
  std::copy(content.begin(), content.end(), static_cast<char*>(bytes.data_ptr()));
  return {bytes, at::scalar_tensor(image.label, at::kLong)};
}

std::string ImageFolder::content_digest() const {
  constexpr std::int64_t kFiles = 4096;
  ContentDigest digest;
  const std::int64_t distance = std::max<std::int64_t>(1, size() / kFiles);
  const std::size_t below = (state_->root / "").string().size();
  for (std::int64_t i = 0; i < size(); ++i) {
    const ImagePath& image = state_->at(i);
    digest.add(image.path.string().substr(below)).add(image.label);
    std::error_code ignored;  // a missing file gives another size, too
    if (i % distance == 0) digest.add(static_cast<std::int64_t>(fs::file_size(image.path, ignored)));
  }
  return digest.text();
}

namespace {

class EncodedImages : public Dataset {
 public:
  explicit EncodedImages(std::shared_ptr<const ImageFolder> images) : images_(std::move(images)) {}
  std::int64_t size() const override { return images_->size(); }
  Example get(std::int64_t index) const override { return images_->encoded(index); }

 private:
  std::shared_ptr<const ImageFolder> images_;
};

}  // namespace

std::shared_ptr<const Dataset> encoded_images(std::shared_ptr<const ImageFolder> images) {
  return std::make_shared<EncodedImages>(std::move(images));
}

}  // namespace trireme::data
