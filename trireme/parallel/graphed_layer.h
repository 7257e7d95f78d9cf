#pragma once
// A layer whose forward and backward are each captured once and repeated as one launch (CUDA graphs;
// make_graphed_callables is PyTorch's). Autograd sees one node for the whole layer: gradients reach
// parameters, hooks and reductions outside of the graphs, so that a replay skips no work of the host.
//
// The first forwards for inputs of some sizes run without a graph (warm-up). Then both graphs are captured,
// and replayed from that forward on. Each micro-batch between its forward and its backward has graphs of its
// own. Some layers cannot be captured, and this is detected. They read the device on the host, change an
// input in place, or compute with a parameter that they do not list. Numbers of the host keep the value of
// the capture. Forwards without gradients run without a graph.
//
// Cost of a replay: two launches, and one copy of each input, output and gradient. Memory: the activations of
// the layer stay allocated between steps. One thread.

#include <cstdint>
#include <memory>
#include <string>

#include "trireme/model/layer.h"
#include "trireme/parallel/graphed_step.h"

namespace trireme::parallel {

/// Of all layers that were made with it.
struct GraphCounts {
  std::int64_t num_graphs = 0;   ///< captures of a forward with its backward
  std::int64_t num_replays = 0;  ///< forwards that were replayed
  std::string why_not = {};      ///< why a layer runs as it is, with its name; empty: none does
};

/// `layer`, captured. Its parameters and buffers stay at their addresses while it trains; graphs are captured
/// again after a change, eight times at most. The first 16 sizes of inputs are captured. Forwards have to run
/// on a stream that can be captured, which the default one is not. With GraphUse::kOn its forward throws
/// InvalidArgument, with the layer and the reason, where it cannot be captured; with kAuto it runs as it is.
model::Layer graphed(model::Layer layer, c10::Device device, const GraphOptions& options,
                     std::shared_ptr<GraphCounts> counts);

}  // namespace trireme::parallel
