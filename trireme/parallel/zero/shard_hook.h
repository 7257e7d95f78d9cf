#pragma once
// Compression of gradients and weights between ranks that shard them (ZeroOptions): the hook for
// DataParallelOptions::hook with shards. Each rank encodes every other rank's part of its gradients, and the
// receiver adds them up. This costs (n - 1) / n of the encoded bytes, and one rounding for each rank. Weights
// are gathered rounded to nearest. Source: Wang et al., "ZeRO++", arXiv 2306.10209, sections 3.3 (all-to-all
// of quantised gradients) and 3.1. The updating rank keeps exact values. All ranks, that one too, compute
// with the rounded ones. Vectors and small parameters are sent uncompressed. Compressions of whole gradients
// ("dgc", "power-sgd") give all ranks the whole sum, of which each takes its part. Bytes and state are then
// those of replicas.

#include <memory>
#include <string>
#include <vector>

#include "trireme/parallel/data/comm_hook.h"

namespace trireme::parallel {

/// For one model. Of `compression.name` "none" has gradients reduced as they are, and counted. Parameters
/// that several stages share stay whole, and are reduced as make_comm_hook() does among all ranks. Throws
/// InvalidArgument: a compression that is not of shard_hook_names(); a clip_norm; options out of their range.
/// With "dgc", whose velocity continues with each reduction, a step must have one only. `weights` is one of
/// shard_weight_names(); ranks with weights in one memory gather nothing, and nothing is rounded there.
std::shared_ptr<CommHook> make_shard_hook(const CompressionOptions& compression,
                                          const std::string& weights = "none");

/// Those of comm_hook_names() but "one-bit", which needs the whole momentum on each rank.
std::vector<std::string> shard_hook_names();
/// How weights may be gathered.
std::vector<std::string> shard_weight_names();

}  // namespace trireme::parallel
