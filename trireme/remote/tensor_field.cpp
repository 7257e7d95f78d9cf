#include "trireme/remote/tensor_field.h"

#include <ATen/Functions.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <limits>
#include <memory>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/remote/internal/tensor_collector.h"
#include "trireme/rpc/remote_error.h"

namespace trireme::remote {
namespace {

/// An exception of libtorch, without the addresses of its backtrace.
template <class Exception>
bool carry_torch_exception(const std::string& kind) {
  return rpc::internal::add_exception(
      kind, typeid(Exception),
      [](const std::string& message) {
        return std::make_exception_ptr(Exception({"", "", 0}, message));
      },
      [](const std::exception& error) {
        return std::string(static_cast<const c10::Error&>(error).what_without_backtrace());
      });
}

[[maybe_unused]] const bool kTorchExceptionsAreKnown =
    carry_torch_exception<c10::Error>("c10.Error") &&
    carry_torch_exception<c10::IndexError>("c10.IndexError") &&
    carry_torch_exception<c10::ValueError>("c10.ValueError") &&
    carry_torch_exception<c10::TypeError>("c10.TypeError") &&
    carry_torch_exception<c10::NotImplementedError>("c10.NotImplementedError");

}  // namespace

TensorCollector& TensorCollector::here() {
  thread_local TensorCollector collector;
  return collector;
}

std::vector<at::Tensor> TensorCollector::end() {
  is_open_ = false;
  return std::exchange(tensors_, {});
}

}  // namespace trireme::remote

namespace trireme::wire {
namespace {

// Smaller tensors are sent as fields, which costs less than a separate part.
constexpr std::size_t kSmallBytes = 1024;

enum class Place : std::uint8_t { kUndefined, kAmongFields, kBeside, kLast = kBeside };

}  // namespace

void Field<at::Tensor>::write(FieldWriter& writer, const at::Tensor& tensor) {
  if (!tensor.defined()) return writer.write(Place::kUndefined);
  require(tensor.layout() == at::kStrided && !tensor.is_quantized() && !tensor.is_meta(),
          "a tensor that is sparse, quantised or without values cannot be sent; send its parts");
  auto& collector = remote::TensorCollector::here();
  const at::Tensor sent = tensor.is_cpu() ? tensor : tensor.to(at::kCPU);
  const bool has_gradient = collector.is_open() && c10::GradMode::is_enabled() && sent.requires_grad();
  if (has_gradient) collector.add(sent);
  const auto plain =
      std::make_shared<const at::Tensor>(sent.detach().resolve_conj().resolve_neg().contiguous());
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(plain->const_data_ptr()),
                                         plain->nbytes());
  const bool is_small = bytes.size() <= kSmallBytes;
  writer.write(is_small ? Place::kAmongFields : Place::kBeside);
  writer.write(static_cast<std::int8_t>(plain->scalar_type()));
  writer.write(has_gradient);
  writer.write(plain->sizes().vec());
  if (is_small) {
    writer.write(std::vector<std::byte>(bytes.begin(), bytes.end()));
  } else {
    writer.attach(Buffer(plain, bytes));
  }
}

void Field<at::Tensor>::read(FieldReader& reader, at::Tensor& tensor) {
  Place place{};
  std::int8_t dtype = 0;
  bool has_gradient = false;
  std::vector<std::int64_t> sizes;
  tensor = at::Tensor();
  reader.read(place);
  if (!reader.valid() || place == Place::kUndefined) return;
  reader.read(dtype);
  reader.read(has_gradient);
  reader.read(sizes);
  Buffer bytes;
  if (place == Place::kAmongFields) {
    std::vector<std::byte> few;
    reader.read(few);
    bytes = Buffer::of(std::move(few));
  } else {
    bytes = reader.take_attachment();
  }
  const bool known = dtype >= 0 && dtype < static_cast<std::int8_t>(at::ScalarType::NumOptions) &&
                     !at::isQIntType(static_cast<at::ScalarType>(dtype)) &&
                     static_cast<at::ScalarType>(dtype) != at::ScalarType::Undefined;
  if (!reader.valid() || !known || sizes.size() > 64) return reader.fail();
  const auto type = static_cast<at::ScalarType>(dtype);
  // Strides are products of sizes, even in a tensor without elements. None may overflow.
  const std::size_t most =
      static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max()) / at::elementSize(type);
  std::size_t product = 1;
  bool is_empty = false;
  for (const std::int64_t size : sizes) {
    if (size < 0 || std::cmp_greater(size, most / product)) return reader.fail();
    if (size == 0) is_empty = true;
    if (size > 0) product *= static_cast<std::size_t>(size);
  }
  const std::size_t numel = is_empty ? 0 : product;
  if (numel * at::elementSize(type) != bytes.size()) return reader.fail();
  if (numel == 0) {
    tensor = at::empty(sizes, type);
  } else {
    // No other object uses these bytes.
    auto* const data = const_cast<std::byte*>(bytes.bytes().data());
    tensor = at::from_blob(
        data, sizes, [bytes](void*) {}, at::TensorOptions(type));
  }
  if (has_gradient) remote::TensorCollector::here().add(tensor);
}

}  // namespace trireme::wire
