#pragma once
// Skip connections: tensors that a layer of a chain passes to a later one that is not its neighbour. They are
// sent with the outputs from layer to layer, after them, up to the last layer that takes them. Pure.

#include <functional>
#include <string>
#include <vector>

#include "trireme/model/layer.h"

namespace trireme::model {

using SkipNames = std::vector<std::string>;

/// The skips that travel to each layer, in the order in which they are given; one entry per layer, and an
/// empty one for the end. Throws InvalidArgument with layer and skip: one that is taken before it is given,
/// or never, or given twice.
std::vector<SkipNames> carried_skips(const std::vector<Layer>& layers);

/// The layer's forward on its inputs: fields of the layer before, then those of `carried`. Returns the
/// tensors for the next layer: the layer's fields, then those of `carried_on`, without names. Throws
/// InvalidArgument, with the layer: it gets several tensors and takes one, or returns fewer than it declares.
Fields run_layer(const Layer& layer, const Fields& values, const SkipNames& carried,
                 const SkipNames& carried_on);

/// The forward of all layers, one after the other. Throws what carried_skips() throws; the forward throws
/// what run_layer() throws.
std::function<Fields(const Fields&)> forward_of_chain(std::vector<Layer> layers);

}  // namespace trireme::model
