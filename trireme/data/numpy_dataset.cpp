#include "trireme/data/numpy_dataset.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/zip_members.h"
#include "trireme/data/byte_pixels.h"
#include "trireme/data/internal/npy.h"

namespace trireme::data {
namespace {

constexpr std::string_view kNpyExtension = ".npy";

struct OpenArray {
  NumpyArray place;
  NpyHeader header;
  std::vector<std::int64_t> row_shape;
  std::int64_t row_bytes = 0;
  bool holds_images = false;  ///< bytes that become floats in [0, 1]

  std::int64_t rows() const { return header.shape[0]; }
  at::Tensor read_rows(std::int64_t first, std::int64_t count) const {
    std::vector<std::int64_t> shape = row_shape;
    shape.insert(shape.begin(), count);
    const std::int64_t begin = place.offset + header.header_bytes + first * row_bytes;
    const std::string bytes = read_text(*place.source, begin, count * row_bytes);
    if (!holds_images) return npy_values(header, shape, bytes);
    const at::Tensor images = at::empty(shape, at::kFloat);
    BytePixels(Normalisation())
        .convert({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()},
                 images.data_ptr<float>());
    return images;
  }
  /// One whole number per sample.
  bool is_label() const {
    const auto is_one = [](std::int64_t size) { return size == 1; };
    return header.type() == at::kLong && std::ranges::all_of(row_shape, is_one);
  }
  std::string shown() const { return text("array '", place.name, "' of ", place.source->name()); }
};

OpenArray open_array(const NumpyArray& array) {
  OpenArray open{.place = array, .header = {}, .row_shape = {}};
  try {
    open.header = parse_npy_header(
        read_text(*array.source, array.offset, std::min(array.size, kMaxNpyHeaderBytes)), array.size);
    if (open.header.shape.empty())
      throw DataError("it is a single number, and a data set has a dim of samples");
    if (open.header.fortran_order && open.header.shape.size() > 1)
      throw DataError("it is in Fortran order (columns first); save np.ascontiguousarray of it");
  } catch (const DataError& reason) {
    throw DataError(text("cannot read ", open.shown(), ": ", reason.what()));
  }
  open.row_shape.assign(open.header.shape.begin() + 1, open.header.shape.end());
  open.row_bytes = open.header.item_bytes;
  for (const std::int64_t size : open.row_shape) open.row_bytes *= size;
  return open;
}

/// Arrays of bytes with a height and a width are images.
void take_as_images(OpenArray& array) {
  const std::vector<std::int64_t>& shape = array.row_shape;
  if (array.header.kind != 'u' || array.header.item_bytes != 1 || shape.size() < 2 || shape.size() > 3)
    return;
  const auto is_channels = [](std::int64_t size) { return size == 1 || size == 3 || size == 4; };
  if (shape.size() == 3 && is_channels(shape[2]) && !is_channels(shape[0])) {
    throw DataError(text(array.shown(), " has images of shape ", at::IntArrayRef(shape),
                         ", whose channels come last; expected channels, height, width: save "
                         "np.transpose(x, (0, 3, 1, 2))"));
  }
  array.holds_images = true;
}

}  // namespace

struct NumpyDataset::State {
  std::vector<OpenArray> inputs, targets;

  static std::vector<OpenArray> open(const std::vector<NumpyArray>& arrays,
                                     const std::vector<std::string>& names) {
    std::vector<std::string> known;
    for (const NumpyArray& array : arrays) known.push_back(array.name);
    std::vector<OpenArray> found;
    for (const std::string& name : names) {
      const auto array = std::ranges::find(arrays, name, &NumpyArray::name);
      require(array != arrays.end(), "there is no array '", name, "'", suggest(name, known),
              "; name those to take in data.inputs and data.targets");
      found.push_back(open_array(*array));
    }
    return found;
  }

  static Fields row(const std::vector<OpenArray>& arrays, std::int64_t index) {
    Fields fields;
    for (const OpenArray& array : arrays)
      fields.add(arrays.size() == 1 ? "" : array.place.name, array.read_rows(index, 1).squeeze(0));
    return fields;
  }
};

std::vector<NumpyArray> arrays_of_npz(const std::shared_ptr<const ByteSource>& archive) {
  std::vector<NumpyArray> arrays;
  const auto read = [&](std::int64_t offset, std::int64_t size) { return read_text(*archive, offset, size); };
  for (const ZipMember& member :
       zip_members({.name = archive->name(), .size = archive->size(), .read = read})) {
    if (!member.name.ends_with(kNpyExtension)) continue;
    arrays.push_back({.name = member.name.substr(0, member.name.size() - kNpyExtension.size()),
                      .source = archive,
                      .offset = member.offset,
                      .size = member.size});
  }
  return arrays;
}

NumpyDataset::NumpyDataset(const std::vector<NumpyArray>& arrays, const NumpyDatasetOptions& options)
    : state_(std::make_unique<State>()) {
  require(!options.inputs.empty(), "a data set of arrays needs an input");
  state_->inputs = State::open(arrays, options.inputs);
  std::ranges::for_each(state_->inputs, take_as_images);
  state_->targets = State::open(arrays, options.targets);
  for (const std::vector<OpenArray>* side : {&state_->inputs, &state_->targets}) {
    for (const OpenArray& array : *side) {
      if (array.rows() == size()) continue;
      throw DataError(text(array.shown(), " has ", array.rows(), " samples, and ", state_->inputs[0].shown(),
                           " has ", size()));
    }
  }
  if (size() == 0) throw DataError(text(state_->inputs[0].shown(), " has no samples"));
}

NumpyDataset::~NumpyDataset() = default;

std::int64_t NumpyDataset::size() const { return state_->inputs[0].rows(); }

Example NumpyDataset::get(std::int64_t index) const {
  require(index >= 0 && index < size(), "sample ", index, " of ", size(), " was asked for");
  return {State::row(state_->inputs, index), State::row(state_->targets, index)};
}

ClassLabels NumpyDataset::labels(const std::vector<std::int64_t>& ignored) const {
  ClassLabels labels(ignored);
  if (state_->targets.size() != 1 || !state_->targets[0].is_label()) return labels;
  const OpenArray& target = state_->targets[0];
  constexpr std::int64_t kAtOnce = 1 << 17;
  for (std::int64_t first = 0; first < size(); first += kAtOnce) {
    const std::int64_t count = std::min(kAtOnce, size() - first);
    const at::Tensor values = target.read_rows(first, count);
    const auto* value = values.const_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < count; ++i) labels.add(value[i], first + i);
  }
  return labels;
}

std::string NumpyDataset::label_name(std::int64_t index) const {
  return text("sample ", index, " of ", state_->targets.at(0).shown());
}

void NumpyDataset::check_class_target() const {
  require(state_->targets.size() == 1, "data.targets names ", state_->targets.size(),
          " arrays, and a class is one; for numbers set data.target = \"number\"");
  const OpenArray& target = state_->targets[0];
  if (target.is_label()) return;
  throw DataError(text(target.shown(), " has values of type ", target.header.kind, target.header.item_bytes,
                       " and shape ", at::IntArrayRef(target.header.shape),
                       ", and a class is one whole number per sample: save it by astype('int64'), or for "
                       "numbers set data.target = \"number\", or an objective of numbers such as "
                       "mean_squared_error"));
}

}  // namespace trireme::data
