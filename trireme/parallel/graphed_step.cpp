#include "trireme/parallel/graphed_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/parallel/internal/graph_capture.h"
#include "trireme/parallel/on_stream.h"

namespace trireme::parallel {
namespace {

constexpr std::array<std::pair<const char*, GraphUse>, 3> kUses{
    {{"off", GraphUse::kOff}, {"auto", GraphUse::kAuto}, {"on", GraphUse::kOn}}};

}  // namespace

std::vector<std::string> graph_use_names() {
  std::vector<std::string> names;
  for (const auto& [name, use] : kUses) names.emplace_back(name);
  return names;
}

GraphUse graph_use_of(const std::string& name) {
  const auto* row = std::ranges::find_if(kUses, [&](const auto& each) { return name == each.first; });
  require(row != kUses.end(), "unknown use of graphs '", name, "'", suggest(name, graph_use_names()));
  return row->second;
}

GraphedStep::GraphedStep(c10::Device device, Body body, const GraphOptions& options)
    : device_(device), body_(std::move(body)), options_(options) {
  require(options_.warm_up >= 1, "a step is captured after at least 1 call that runs as it is, not after ",
          options_.warm_up);
  if (options_.use == GraphUse::kOff) {
    why_not_ = "graphs are switched off";
    return;
  }
  why_not_ = comm::graphs_unavailable_because(device_);
  require(options_.use == GraphUse::kAuto || why_not_.empty(),
          "the step cannot be captured in a graph: ", why_not_);
  if (why_not_.empty())
    stream_ = c10::impl::VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_);
}

bool GraphedStep::is_capturing() { return captures_under_way > 0; }

std::size_t GraphedStep::num_graphs() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(shapes_, [](const auto& shape) { return shape->graph != nullptr; }));
}

Fields GraphedStep::operator()(const Fields& inputs) {
  if (!stream_) return body_(inputs.on(device_));
  const OnStream scope(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_), *stream_);
  Shape& shape = shape_for(inputs);
  copy_inputs(inputs, shape);
  run(shape);
  return shape.outputs;
}

GraphedStep::Shape& GraphedStep::shape_for(const Fields& inputs) {
  for (const auto& shape : shapes_) {
    if (are_alike(shape->inputs, inputs)) return *shape;
  }
  const at::NoGradGuard no_grad;
  auto shape = std::make_unique<Shape>();
  shape->inputs = inputs.map([this](const at::Tensor& tensor) {
    return at::empty_like(tensor, tensor.options().device(device_).requires_grad(false).pinned_memory(false));
  });
  return *shapes_.emplace_back(std::move(shape));
}

void GraphedStep::copy_inputs(const Fields& inputs, Shape& shape) {
  const at::NoGradGuard no_grad;
  auto from = inputs.begin();
  for (const batch::Field& field : shape.inputs) {
    const at::Tensor& given = (from++)->tensor;
    at::Tensor(field.tensor).copy_(given, /*non_blocking=*/true);
    // The copy is asynchronous: its memory must not be reused before.
    if (given.device() == device_)
      c10::impl::VirtualGuardImpl(device_.type()).recordDataPtrOnStream(given.storage().data_ptr(), *stream_);
  }
}

void GraphedStep::run(Shape& shape) {
  if (shape.graph == nullptr && why_not_.empty() && shape.num_warm >= options_.warm_up) capture(shape);
  require(options_.use != GraphUse::kOn || why_not_.empty(),
          "the step cannot be captured in a graph: ", why_not_);
  if (shape.graph == nullptr) {
    ++shape.num_warm;
    shape.outputs = body_(shape.inputs);
    return;
  }
  shape.graph->replay();
  ++num_replays_;
}

/// A capture executes nothing: a step that cannot be captured is executed normally afterwards.
void GraphedStep::capture(Shape& shape) {
  auto graph = comm::make_device_graph(device_);
  try {
    Capture capture(*graph);
    shape.outputs = body_(shape.inputs);
    capture.end();
  } catch (const c10::Error& error) {
    why_not_ = error.what_without_backtrace();
    return;
  }
  shape.graph = std::move(graph);
}

}  // namespace trireme::parallel
