#include "tests/support/stand_in_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>

#include "tests/support/stand_in_graph.h"
#include "tests/support/stand_in_memory.h"
#include "tests/support/stand_in_operators.h"
#include "tests/support/stand_in_streams.h"

namespace trireme::test {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;

std::atomic<std::int64_t> num_reads = 0, num_read_bytes = 0, num_pageable = 0, num_event_waits = 0,
                          num_side_copies = 0;
thread_local c10::DeviceIndex current_device = 0;
thread_local bool in_operator = false;
thread_local std::array<c10::StreamId, kNumStandInDevices> current_streams = {};

/// Exists until the end of the process, because tensors may be freed late.
StreamOrder& order() {
  static auto* const kOrder = new StreamOrder;
  return *kOrder;
}

/// The stream on which this thread issues work for a device.
StreamOrder::Stream stream_on(c10::Device device) {
  return {device.index(), current_streams.at(static_cast<std::size_t>(device.index()))};
}

/// Marks a scope in which copies belong to an operator.
class OperatorScope {
 public:
  OperatorScope() : before_(std::exchange(in_operator, true)) {}
  ~OperatorScope() { in_operator = before_; }
  OperatorScope(const OperatorScope&) = delete;
  OperatorScope& operator=(const OperatorScope&) = delete;

 private:
  bool before_;
};

/// Exists until the end of the process, because tensors may be freed late.
HiddenMemory& memory() {
  static auto* const kMemory = new HiddenMemory;
  return *kMemory;
}

LateCopies& queue() {
  static auto* const kQueue = new LateCopies;
  return *kQueue;
}

/// Exists until the end of the process, too.
AllocatedOnDevices& allocated() {
  static auto* const kAllocated = new AllocatedOnDevices(kNumStandInDevices);
  return *kAllocated;
}

class StandInAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device here(kType, current_device);
    if (bytes == 0) return {nullptr, here};
    void* address = memory().take(bytes);
    order().allocated(address, stream_on(here));
    allocated().add(address, bytes, current_device);
    return {address, address, give_back, here};
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    order().lent(memory().begin_of(data.get()), {stream.device_index(), stream.id()});
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes.at(0) = allocated().on(device);  // of all pools
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex /*device*/) override {}
  void resetPeakStats(c10::DeviceIndex device) override { allocated().reset_peak(device); }
  c10::DeleterFnPtr raw_deleter() const override { return give_back; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(memory().behind(to), memory().behind(from), bytes);
  }

 private:
  static void give_back(void* taken) {
    allocated().remove(taken);
    order().given_back(taken);
    memory().give_back(taken);
  }
};

StandInAllocator allocator;
REGISTER_ALLOCATOR(kType, &allocator)

/// The work of all streams is done when it is issued, except copies that wait in the queue. The waits between
/// streams are recorded.
struct GuardImpl final : c10::impl::DeviceGuardImplInterface {
  static c10::Stream stream_of(const StreamOrder::Stream& stream) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, stream.first), stream.second);
  }
  static c10::Stream new_stream(c10::Device device) {
    static std::atomic<c10::StreamId> number = 0;
    return stream_of({device.index(), ++number});
  }
  static StreamOrder::Stream id_of(const c10::Stream& stream) { return {stream.device_index(), stream.id()}; }

  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kType, std::exchange(current_device, device.index())};
  }
  c10::Device getDevice() const override { return {kType, current_device}; }
  void setDevice(c10::Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = device.index(); }
  c10::Stream getStream(c10::Device device) const override {
    return stream_of(stream_on({kType, device.has_index() ? device.index() : current_device}));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_of({device.index(), 0}); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high*/) const override {
    return new_stream(device);
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override { return new_stream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto& current = current_streams.at(static_cast<std::size_t>(stream.device_index()));
    return stream_of({stream.device_index(), std::exchange(current, stream.id())});
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex /*index*/,
              c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) *event = new StreamOrder::Clock;
    *static_cast<StreamOrder::Clock*>(*event) = order().now(id_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) order().wait(id_of(stream), *static_cast<StreamOrder::Clock*>(event));
  }
  void destroyEvent(void* event, c10::DeviceIndex /*index*/) const noexcept override {
    delete static_cast<StreamOrder::Clock*>(event);
  }
  bool queryEvent(void* /*event*/) const override { return true; }
  bool queryStream(const c10::Stream& /*stream*/) const override { return true; }
  void synchronizeEvent(void* event) const override {
    StandInGraph::reject_wait("the host waits for an event");
    if (event != nullptr) order().host_waits(*static_cast<StreamOrder::Clock*>(event));
    ++num_event_waits;
    queue().finish();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    order().host_waits(order().now(id_of(stream)));
    wait();
  }
  void synchronizeDevice(c10::DeviceIndex /*index*/) const override {
    order().host_waits_for_all();
    wait();
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (data.get() != nullptr) order().lent(memory().begin_of(data.get()), id_of(stream));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kNumStandInDevices; }

 private:
  static void wait() {
    StandInGraph::reject_wait("the host waits for the device");
    ++num_reads;
    queue().finish();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, GuardImpl)

/// The device uses the random generator of the CPU.
struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kNumStandInDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(c10::DeviceIndex index) const override { current_device = index; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return std::exchange(current_device, index);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return std::exchange(current_device, index);
  }
  bool isPinnedPtr(const void* data) const override { return PinnedAllocator::one().holds(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &PinnedAllocator::one(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex /*index*/) const override {
    return at::globalContext().defaultGenerator(c10::kCPU);
  }
};

/// The same tensor in memory that the CPU can read.
at::Tensor seen_by_cpu(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0 || tensor.is_cpu()) return tensor;
  return at::from_blob(memory().behind(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                       tensor.options().device(c10::kCPU).requires_grad(false));
}

/// Records that the current stream uses a tensor of the device.
void use(const at::Tensor& tensor, bool writes, const std::string& operation) {
  if (!tensor.defined() || tensor.device().type() != kType || tensor.numel() == 0) return;
  const void* piece = memory().begin_of(tensor.const_data_ptr());
  const StreamOrder::Stream stream = stream_on(tensor.device());
  writes ? order().write(piece, stream, operation) : order().read(piece, stream, operation);
}

/// The host waits for the work that was issued to the current stream.
void host_waits(c10::Device device) { order().host_waits(order().now(stream_on(device))); }

/// Memory that is allocated during a capture belongs to the graph.
at::Tensor in_graph(at::Tensor tensor) {
  if (StandInGraph* graph = StandInGraph::capturing()) graph->made(tensor);
  return tensor;
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> type,
                 std::optional<at::Layout> /*layout*/, std::optional<c10::Device> device,
                 std::optional<bool> /*pinned*/, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(c10::Device(kType, current_device)));
  return in_graph(at::detail::empty_generic(sizes, &allocator,
                                            c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                            type.value_or(at::kFloat), format));
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> type,
                         std::optional<at::Layout> /*layout*/, std::optional<c10::Device> device,
                         std::optional<bool> /*pinned*/) {
  const c10::DeviceGuard guard(device.value_or(c10::Device(kType, current_device)));
  return in_graph(at::detail::empty_strided_generic(sizes, strides, &allocator,
                                                    c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                    type.value_or(at::kFloat)));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const at::NoGradGuard no_grad;
  if (from.numel() == 0 && to.numel() == 0) return to;
  const bool reads = to.is_cpu() && !in_operator;
  if (reads && !(non_blocking && PinnedAllocator::one().holds(to.const_data_ptr()))) ++num_reads;
  if (reads) num_read_bytes += static_cast<std::int64_t>(from.nbytes());
  if (from.is_cpu() && !to.is_cpu() && !in_operator && !PinnedAllocator::one().holds(from.const_data_ptr()))
    ++num_pageable;
  if (!in_operator) {
    const c10::Device device = from.is_cpu() ? to.device() : from.device();
    if (non_blocking && from.is_cpu() != to.is_cpu() && stream_on(device).second != 0) ++num_side_copies;
    use(from, /*writes=*/false, "a copy");
    use(to, /*writes=*/true, "a copy");
    if (StandInGraph* graph = StandInGraph::capturing()) {
      if (to.is_cpu()) StandInGraph::reject_wait("a tensor is read on the host");
      TORCH_CHECK(!from.is_cpu() || PinnedAllocator::one().holds(from.const_data_ptr()),
                  "a tensor of pageable memory of the host is copied while a graph is captured");
      queue().finish();
      graph->will_write(to);
      graph->add("a copy", {from, to}, {}, [](const auto& arguments, const auto& /*results*/) {
        seen_by_cpu(arguments[1].toTensor()).copy_(seen_by_cpu(arguments[0].toTensor()));
      });
    }
  }
  if (non_blocking && !in_operator && from.is_cpu()) {
    queue().add_to_device([from, to] { seen_by_cpu(to).copy_(from); });
    return to;
  }
  queue().work();
  if (non_blocking && reads) {
    queue().add_to_host([now = seen_by_cpu(from).clone(), to] { to.copy_(now); });
    return to;
  }
  if (reads) {
    host_waits(from.device());
    queue().finish();
  }
  seen_by_cpu(to).copy_(seen_by_cpu(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, /*non_blocking=*/false);
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  if (!in_operator) {
    StandInGraph::reject_wait("a number is read on the host");
    ++num_reads;
    num_read_bytes += static_cast<std::int64_t>(tensor.element_size());
    use(tensor, /*writes=*/false, "reading a number");
    host_waits(tensor.device());
  }
  queue().finish();
  return seen_by_cpu(tensor).item();
}

const at::Tensor& resize(const at::Tensor& tensor, at::IntArrayRef sizes,
                         std::optional<at::MemoryFormat> /*format*/) {
  std::int64_t numel = 1;
  for (const std::int64_t size : sizes) numel *= size;
  const auto bytes = static_cast<std::size_t>(tensor.storage_offset() + numel) * tensor.element_size();
  c10::StorageImpl* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  if (storage->nbytes() < bytes) {
    const c10::DeviceGuard guard(tensor.device());
    c10::DataPtr larger = allocator.allocate(bytes);
    if (storage->nbytes() > 0) allocator.copy_data(larger.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr(std::move(larger));
    storage->set_nbytes(bytes);
  }
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

/// Keeps requires_grad, by which ATen chooses its kernels.
at::Tensor seen_by_convolution(const at::Tensor& tensor) {
  return seen_by_cpu(tensor).requires_grad_(tensor.requires_grad());
}

/// Runs an operator that the fallback does not handle. `compute` gets the arguments, and its results are
/// moved to the device of the first argument.
template <class Compute>
std::vector<at::Tensor> computed(const char* name, const std::vector<at::Tensor>& arguments,
                                 const Compute& compute) {
  for (const at::Tensor& read : arguments) use(read, /*writes=*/false, name);
  const OperatorScope scope;
  queue().work();
  std::vector<at::Tensor> results = compute(arguments);
  for (at::Tensor& result : results) {
    if (result.defined()) result = result.to(arguments.front().device());
  }
  if (StandInGraph* graph = StandInGraph::capturing()) {
    for (const at::Tensor& result : results) graph->made(result);
    const std::vector<c10::IValue> read(arguments.begin(), arguments.end()),
        made(results.begin(), results.end());
    graph->add(name, read, made, [compute](const auto& again, const auto& places) {
      const OperatorScope replayed;
      std::vector<at::Tensor> given;
      for (const c10::IValue& value : again) given.push_back(value.toTensor());
      const std::vector<at::Tensor> now = compute(given);
      for (std::size_t i = 0; i < now.size(); ++i) {
        if (now[i].defined()) seen_by_cpu(places[i].toTensor()).copy_(now[i]);
      }
    });
  }
  return results;
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, at::IntArrayRef stride, at::IntArrayRef padding,
                       at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
                       std::int64_t groups) {
  const auto compute = [stride = stride.vec(), padding = padding.vec(), dilation = dilation.vec(), transposed,
                        output_padding = output_padding.vec(), groups](const std::vector<at::Tensor>& of) {
    return std::vector{at::convolution(seen_by_convolution(of[0]), seen_by_convolution(of[1]),
                                       seen_by_cpu(of[2]), stride, padding, dilation, transposed,
                                       output_padding, groups)};
  };
  return computed("aten::convolution", {input, weight, bias.value_or(at::Tensor())}, compute).front();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
    std::int64_t groups, std::array<bool, 3> mask) {
  const auto compute = [stride = stride.vec(), padding = padding.vec(), dilation = dilation.vec(), transposed,
                        output_padding = output_padding.vec(), groups,
                        mask](const std::vector<at::Tensor>& of) {
    const auto [of_input, of_weight, of_bias] = at::convolution_backward(
        seen_by_cpu(of[0]), seen_by_cpu(of[1]), seen_by_cpu(of[2]), {{of[0].size(1)}}, stride, padding,
        dilation, transposed, output_padding, groups, mask);
    return std::vector{of_input, of_weight, of_bias};
  };
  const std::vector<at::Tensor> results =
      computed("aten::convolution_backward", {gradient, input, weight}, compute);
  return {results[0], results[1], results[2]};
}

/// Checks that the operator's reads and writes come after the uses of the same memory by other streams.
void check_streams(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  const std::size_t begin = stack.size() - arguments.size();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const bool writes = arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
    const c10::IValue& value = stack[begin + i];
    if (value.isTensor()) use(value.toTensor(), writes, op.schema().name());
    if (!value.isTensorList()) continue;
    for (const at::Tensor& tensor : value.toTensorList()) use(tensor, writes, op.schema().name());
  }
}

/// Runs the operator again, into the tensors of the first results.
void repeat(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments,
            const std::vector<c10::IValue>& results) {
  const OperatorScope scope;
  const at::AutoDispatchBelowAutograd kernels_alone;
  torch::jit::Stack stack(arguments.begin(), arguments.end());
  at::native::cpu_fallback(op, &stack);
  for (std::size_t i = 0; i < results.size(); ++i) {
    std::vector<at::Tensor> first, now;
    for_each_tensor(results[i], [&](const at::Tensor& tensor) { first.push_back(tensor); });
    for_each_tensor(stack[i], [&](const at::Tensor& tensor) { now.push_back(tensor); });
    for (std::size_t k = 0; k < first.size(); ++k) {
      if (first[k].defined() && first[k].numel() > 0 && !first[k].is_same(now[k]))
        seen_by_cpu(first[k]).copy_(seen_by_cpu(now[k]));
    }
  }
}

void capture(StandInGraph& graph, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::vector<c10::Argument>& described = op.schema().arguments();
  const std::vector<c10::IValue> arguments(stack->end() - static_cast<std::ptrdiff_t>(described.size()),
                                           stack->end());
  for (std::size_t i = 0; i < described.size(); ++i) {
    if (described[i].alias_info() != nullptr && described[i].alias_info()->isWrite())
      for_each_tensor(arguments[i], [&](const at::Tensor& tensor) { graph.will_write(tensor); });
  }
  at::native::cpu_fallback(op, stack);
  const auto num_results = static_cast<std::ptrdiff_t>(op.schema().returns().size());
  const std::vector<c10::IValue> results(stack->end() - num_results, stack->end());
  for (const c10::IValue& result : results) {
    for_each_tensor(result, [&](const at::Tensor& tensor) {
      bool is_argument = false;
      for (const c10::IValue& argument : arguments)
        for_each_tensor(argument,
                        [&](const at::Tensor& each) { is_argument = is_argument || each.is_same(tensor); });
      if (!is_argument) graph.made(tensor);
    });
  }
  graph.add(op.schema().name(), arguments, results,
            [op](const auto& first, const auto& made) { repeat(op, first, made); });
}

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  check_one_device(op, *stack);
  check_streams(op, *stack);
  const OperatorScope scope;
  queue().work();
  if (StandInGraph* graph = StandInGraph::capturing(); graph != nullptr) return capture(*graph, op, stack);
  at::native::cpu_fallback(op, stack);
}

const bool kRegistered = [] {
  c10::register_privateuse1_backend(kStandInDevice);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

std::int64_t reads_from_stand_in() { return num_reads; }
std::unique_ptr<StandInGraph> make_stand_in_graph() {
  return std::make_unique<StandInGraph>([](const void* address) {
    queue().finish();
    return memory().behind(address);
  });
}
std::int64_t copies_on_own_streams_of_stand_in() { return num_side_copies; }
std::int64_t waits_for_events_of_stand_in() { return num_event_waits; }
std::int64_t bytes_read_from_stand_in() { return num_read_bytes; }
std::int64_t copies_from_pageable_memory() { return num_pageable; }

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", local_scalar);
  library.impl("resize_", resize);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", at::native::view);
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("unfold", at::native::unfold);
  library.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  library.impl("convolution_overrideable", convolution);
  library.impl("convolution_backward_overrideable", convolution_backward);
}

}  // namespace trireme::test
