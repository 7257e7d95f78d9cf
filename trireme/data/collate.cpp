#include "trireme/data/collate.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/data/internal/row_team.h"

namespace trireme::data {
namespace {

/// Base of data sets that wrap another one and build batches differently.
class Around : public Dataset {
 public:
  explicit Around(std::shared_ptr<const Dataset> samples) : samples_(std::move(samples)) {}
  std::int64_t size() const override { return samples_->size(); }
  Example get(std::int64_t index) const override { return samples_->get(index); }
  double cost(std::int64_t index) const override { return samples_->cost(index); }
  std::vector<std::int64_t> shard_ends() const override { return samples_->shard_ends(); }
  Example get_batch(std::span<const std::int64_t> indices) const override {
    if (!indices.empty()) return batch_of(indices);
    // An empty batch still has to have the fields of a batch.
    const std::int64_t first = 0;
    Example batch = batch_of({&first, 1});
    const auto none = [](const at::Tensor& tensor) { return tensor.slice(0, 0, 0); };
    return {batch.input.map(none), batch.target.map(none)};
  }

 protected:
  virtual Example batch_of(std::span<const std::int64_t> indices) const = 0;
  std::vector<Example> read(std::span<const std::int64_t> indices) const {
    std::vector<Example> samples(indices.size());
    for_each_row(indices.size(), [&](std::size_t row) { samples[row] = get(indices[row]); });
    return samples;
  }
  template <class View>
  std::shared_ptr<const Dataset> view_in(std::uint64_t epoch, const View& view) const {
    auto samples = samples_->in_epoch(epoch);
    if (!samples) return nullptr;
    auto copy = std::make_shared<View>(view);
    copy->samples_ = std::move(samples);
    return copy;
  }

  std::shared_ptr<const Dataset> samples_;
};

class Collated : public Around {
 public:
  Collated(std::shared_ptr<const Dataset> samples, Collate collate, BatchSizes sizes)
      : Around(std::move(samples)), collate_(std::move(collate)), sizes_(sizes) {}
  bool sizes_vary() const override { return sizes_ == BatchSizes::kVary; }
  std::shared_ptr<const Dataset> in_epoch(std::uint64_t epoch) const override {
    return view_in(epoch, *this);
  }

 private:
  Example batch_of(std::span<const std::int64_t> indices) const override {
    Example batch = collate_(read(indices));
    for (const Fields* fields : {&batch.input, &batch.target}) {
      for (const auto& [name, tensor] : *fields) {
        if (tensor.dim() >= 1 && tensor.size(0) == static_cast<std::int64_t>(indices.size())) continue;
        throw DataError(text("of ", indices.size(), " samples, the first of them number ", indices[0],
                             ", the collate function makes ", batch::to_text(*fields),
                             "; expected a first dim of ", indices.size(), " in every field"));
      }
    }
    return batch;
  }

  Collate collate_;
  BatchSizes sizes_;
};

/// The tensors of one field over a batch.
struct Column {
  std::vector<at::Tensor> tensors;
  std::span<const std::int64_t> indices;
  std::string name;  ///< for error messages
};

void check_alike(const Column& column) {
  const at::Tensor& first = column.tensors[0];
  for (std::size_t i = 0; i < column.tensors.size(); ++i) {
    const at::Tensor& other = column.tensors[i];
    if (other.dim() == first.dim() && other.scalar_type() == first.scalar_type()) continue;
    throw DataError(text("field ", column.name, " of sample ", column.indices[i], " is ",
                         batch::to_text(other), ", that of sample ", column.indices[0], " is ",
                         batch::to_text(first),
                         "; padding brings sizes to one, not types or numbers of dims"));
  }
}

std::int64_t rounded_up(std::int64_t size, std::int64_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

/// The size that every sample of the batch is padded to.
std::vector<std::int64_t> sizes_for(const Column& column, const Padding& padding) {
  std::vector<std::int64_t> sizes = column.tensors[0].sizes().vec();
  for (const at::Tensor& tensor : column.tensors) {
    for (std::size_t dim = 0; dim < sizes.size(); ++dim)
      sizes[dim] = std::max(sizes[dim], tensor.size(static_cast<std::int64_t>(dim)));
  }
  if (sizes.empty()) return sizes;
  sizes[0] = rounded_up(sizes[0], padding.multiple_of);
  if (padding.length == 0) return sizes;
  for (std::size_t i = 0; i < column.tensors.size(); ++i) {
    if (column.tensors[i].size(0) <= padding.length) continue;
    throw DataError(text("field ", column.name, " of sample ", column.indices[i], " is ",
                         column.tensors[i].size(0), " long, and is to be padded to ", padding.length,
                         "; cut the sample, or set a larger Padding::length"));
  }
  sizes[0] = padding.length;
  return sizes;
}

// No ATen fill or copy, as in dataset.cpp: ATen may start a team of threads in every worker.

at::Tensor filled(at::IntArrayRef sizes, double value, at::ScalarType type) {
  const at::Tensor tensor = at::empty(sizes, type), one = at::full({1}, value, type);
  auto* to = static_cast<char*>(tensor.data_ptr());
  const std::size_t size = tensor.nbytes();
  if (size > 0) std::memcpy(to, one.const_data_ptr(), one.nbytes());
  for (std::size_t done = one.nbytes(); done < size; done *= 2)
    std::memcpy(to + done, to, std::min(done, size - done));
  return tensor;
}

/// Copies `tensor` to the corner of `into`, which is contiguous.
void put(const at::Tensor& tensor, const at::Tensor& into) {
  const at::Tensor values = tensor.contiguous();
  if (values.numel() == 0) return;
  if (values.dim() == 0 || values.sizes().slice(1) == into.sizes().slice(1)) {
    std::memcpy(into.data_ptr(), values.const_data_ptr(), values.nbytes());
    return;
  }
  for (std::int64_t i = 0; i < values.size(0); ++i) put(values[i], into[i]);
}

class Padded : public Around {
 public:
  Padded(std::shared_ptr<const Dataset> samples, std::vector<Padding> paddings, BatchSizes sizes)
      : Around(std::move(samples)), paddings_(std::move(paddings)), sizes_(sizes) {}
  bool sizes_vary() const override { return sizes_ == BatchSizes::kVary; }
  std::shared_ptr<const Dataset> in_epoch(std::uint64_t epoch) const override {
    return view_in(epoch, *this);
  }

 private:
  Example batch_of(std::span<const std::int64_t> indices) const override {
    const std::vector<Example> samples = read(indices);
    return {side(samples, indices, &Example::input, "input"),
            side(samples, indices, &Example::target, "target")};
  }

  Fields side(const std::vector<Example>& samples, std::span<const std::int64_t> indices, Fields Example::*of,
              const std::string& unnamed) const {
    Fields batch;
    const Fields& first = samples[0].*of;
    for (std::size_t place = 0; place < first.size(); ++place) {
      const std::string& name = (first.begin() + static_cast<std::ptrdiff_t>(place))->name;
      Column column{.tensors = {}, .indices = indices, .name = name.empty() ? unnamed : "'" + name + "'"};
      for (std::size_t i = 0; i < samples.size(); ++i) {
        check_same_fields(samples[i].*of, first, indices[i]);
        column.tensors.push_back((samples[i].*of).at(place));
      }
      add(batch, name, column, find(name.empty() ? unnamed : name));
    }
    return batch;
  }

  const Padding* find(const std::string& field) const {
    const auto found = std::ranges::find(paddings_, field, &Padding::field);
    return found == paddings_.end() ? nullptr : &*found;
  }

  static void add(Fields& batch, const std::string& name, const Column& column, const Padding* padding) {
    check_alike(column);
    static const Padding kNone;
    std::vector<std::int64_t> shape = sizes_for(column, padding ? *padding : kNone);
    for (std::size_t i = 0; !padding && i < column.tensors.size(); ++i) {
      if (column.tensors[i].sizes() == at::IntArrayRef(shape)) continue;
      throw DataError(text("field ", column.name, " of sample ", column.indices[i], " is ",
                           batch::to_text(column.tensors[i]),
                           ", another of its batch is larger; give the field "
                           "a data::Padding"));
    }
    shape.insert(shape.begin(), static_cast<std::int64_t>(column.tensors.size()));
    const at::Tensor values = filled(shape, padding ? padding->value : 0, column.tensors[0].scalar_type());
    const bool masks = padding && !padding->mask.empty();
    const at::Tensor mask = masks ? filled(shape, 0, at::kBool) : at::Tensor();
    for (std::size_t i = 0; i < column.tensors.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i);
      put(column.tensors[i], values[row]);
      if (masks) put(filled(column.tensors[i].sizes(), 1, at::kBool), mask[row]);
    }
    batch.add(name, values);
    if (masks) batch.add(padding->mask, mask);
  }

  std::vector<Padding> paddings_;
  BatchSizes sizes_;
};

/// The tensors of a sample that a padding applies to.
std::vector<at::Tensor> meant(const Example& sample, const std::string& field) {
  std::vector<at::Tensor> found;
  const auto look_in = [&](const Fields& fields, const std::string& unnamed) {
    for (const auto& [name, tensor] : fields) {
      if ((name.empty() ? unnamed : name) == field) found.push_back(tensor);
    }
  };
  look_in(sample.input, "input");
  look_in(sample.target, "target");
  return found;
}

}  // namespace

std::shared_ptr<const Dataset> padded(std::shared_ptr<const Dataset> samples, std::vector<Padding> paddings) {
  require(!paddings.empty(), "there is nothing to pad: name a field");
  const Example first = samples->get(0);
  auto sizes = BatchSizes::kSame;
  for (const Padding& padding : paddings) {
    require(padding.multiple_of >= 1 && padding.length >= 0, "field '", padding.field,
            "' cannot be padded to a multiple of ", padding.multiple_of, " or a length of ", padding.length);
    const std::vector<at::Tensor> tensors = meant(first, padding.field);
    require(!tensors.empty(), "there is no field '", padding.field, "' to pad: samples have ",
            batch::to_text(first.input), ", and targets ", batch::to_text(first.target));
    const auto is_row = [](const at::Tensor& tensor) { return tensor.dim() <= 1; };
    if (padding.length == 0 || !std::ranges::all_of(tensors, is_row)) sizes = BatchSizes::kVary;
  }
  return std::make_shared<Padded>(std::move(samples), std::move(paddings), sizes);
}

std::shared_ptr<const Dataset> collated(std::shared_ptr<const Dataset> samples, Collate collate,
                                        BatchSizes sizes) {
  require(collate != nullptr, "a data set cannot be collated without a function");
  return std::make_shared<Collated>(std::move(samples), std::move(collate), sizes);
}

}  // namespace trireme::data
