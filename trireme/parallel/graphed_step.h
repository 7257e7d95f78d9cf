#pragma once
// A training step that a device repeats as one launch (CUDA graphs; torch.cuda.graph and
// make_graphed_callables are PyTorch's). The step is a function of tensors. In its first calls for inputs of
// some sizes it runs normally (warm-up), then it is captured, and from then on replayed. The host's code of
// the step does not run again. A new graph is made for inputs of other sizes, dtypes or names.
//
//     parallel::GraphedStep step(context->device(), [&](const Fields& batch) {
//       ddp.zero_grad();
//       const at::Tensor loss = at::cross_entropy_loss(net->forward(batch.at(0)), batch.at(1));
//       loss.backward();
//       optimizer->step();
//       return Fields(loss.detach());
//     });
//     optimizer->keep_lr_on(context->device());     // a replay follows set_lr()
//     for (...) losses.push_back(batch::DeviceNumbers(step(batch).at(0)));
//
// Requirements of a step that is captured:
// - Values that change from call to call are inputs, or are in memory that the step reads (the learning rate
//   of keep_lr_on(), the scale of a LossScaler). Numbers of the host keep the value of the capture.
// - It does not read the device on the host: no item(), no clip_grad_norm(), which returns a number. Clip by
//   a norm on the device: clip_to_norm(parameters, norm, max_norm) with norm_of_norms().
//   LossScaler::decide() and Optimizer::step(leave_out) skip updates.
// - Collectives inside must be of nccl: other backends move tensors through the host.
// - zero_grad() drops gradients (as all optimizers of Trireme do): a replay writes them to the addresses of
//   the capture.
//
// Not thread-safe; no other thread captures on the same device meanwhile.

#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/batch/fields.h"
#include "trireme/comm/device_graph.h"

namespace trireme::parallel {

/// Whether steps are captured.
enum class GraphUse {
  kOff,   ///< the step runs as it is
  kAuto,  ///< runs without a graph where it cannot be captured; why_not() has the reason
  kOn,    ///< where it cannot be captured its call throws InvalidArgument
};

/// Throws InvalidArgument with the nearest of graph_use_names().
GraphUse graph_use_of(const std::string& name);
/// "off", "auto", "on"
std::vector<std::string> graph_use_names();

/// When and whether a step is captured.
struct GraphOptions {
  GraphUse use = GraphUse::kAuto;
  int warm_up = 3;  ///< calls for inputs of some sizes before they are captured, at least 1
};

class GraphedStep {
 public:
  /// One step, from its inputs to its outputs.
  using Body = std::function<Fields(const Fields& inputs)>;

  /// `body` is called with inputs on `device` whose memory stays where it is. Throws InvalidArgument: no
  /// graphs on the device (with kOn), a warm-up below 1.
  GraphedStep(c10::Device device, Body body, const GraphOptions& options = {});

  /// One step. `inputs`: on the device or the host. Pinned memory is copied without a wait; do not change it
  /// before the device has copied it. The next call overwrites the outputs. Work that was issued before comes
  /// before the step, later work comes after it. Throws the exceptions of the body, and with kOn
  /// InvalidArgument: it cannot be captured, with the reason.
  Fields operator()(const Fields& inputs);

  /// Steps that were replayed, and graphs that were captured, since it was made.
  std::int64_t num_replays() const { return num_replays_; }
  std::size_t num_graphs() const;
  /// One captures now, on any thread: the host must not read a device.
  static bool is_capturing();
  /// Why steps run as they are; empty where they are captured, or were not tried yet.
  const std::string& why_not() const { return why_not_; }

 private:
  struct Shape {
    Fields inputs, outputs;  ///< where a graph reads and writes
    int num_warm = 0;
    std::unique_ptr<comm::DeviceGraph> graph = nullptr;
  };

  Shape& shape_for(const Fields& inputs);
  void copy_inputs(const Fields& inputs, Shape& shape);
  void run(Shape& shape);
  void capture(Shape& shape);

  const c10::Device device_;
  const Body body_;
  const GraphOptions options_;
  std::optional<c10::Stream> stream_;  ///< none: without graphs
  std::vector<std::unique_ptr<Shape>> shapes_;
  std::string why_not_;
  std::int64_t num_replays_ = 0;
};

}  // namespace trireme::parallel
