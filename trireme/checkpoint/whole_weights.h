#pragma once
// The weights of a whole model in one file, from and into any kind of loop: replicas, shards, pipelines
// (loop_model.h). Rank 0 alone writes and reads the file; the other ranks get or send their parts over the
// group of all ranks, so that the file need not be on a shared disk. All ranks call it. Cost: each weight
// goes over the network once, in pieces of 16 MiB.
//
//   checkpoint::save_whole(*context, train::sharded_loop(sharded), "model.safetensors");
//   checkpoint::load_whole(*context, train::pipeline_loop(pipe), "model.safetensors");
//   checkpoint::save_whole(*context, train::pipeline_loop(pipe), *net, "model.pt");  // for torch::load(net,
//   ...)

#include <torch/nn/module.h>

#include <filesystem>

#include "trireme/checkpoint/loop_model.h"
#include "trireme/comm/context.h"

namespace trireme::checkpoint {

/// Writes safetensors: parameters and buffers by name; buffers are those of rank 0, or of the first rank that
/// has them. The file appears when it is complete. A rank holds one piece besides its own weights. Throws
/// DataError on every rank where rank 0 cannot write, after which it may be called again; the exceptions of
/// LoopModel::weights(); InvalidArgument for the extensions .pt and .pth.
void save_whole(comm::Context& context, const LoopModel& model, const std::filesystem::path& path);
/// The same; with the extension .pt or .pth in the form of libtorch's torch::save(module, FILE), which has
/// the submodules of `module`: those that it had before it was wrapped. Its values are not used. Rank 0 holds
/// all weights in memory for that.
void save_whole(comm::Context& context, const LoopModel& model, const torch::nn::Module& module,
                const std::filesystem::path& path);
/// Of replicas.
void save_whole(comm::Context& context, torch::nn::Module& module, const std::filesystem::path& path);

/// Fills all ranks from a safetensors file or an index of several, or from a file of libtorch's
/// torch::save(module, FILE) or Python's torch.save(model.state_dict(), FILE). Values are converted to the
/// dtypes of the model. Optimizers keep their state. Throws DataError on every rank, before a weight is
/// changed: a file that cannot be read, names or shapes that are not the model's. Code in a file of
/// torch::save is not executed.
void load_whole(comm::Context& context, const LoopModel& model, const std::filesystem::path& path);
void load_whole(comm::Context& context, torch::nn::Module& module, const std::filesystem::path& path);

}  // namespace trireme::checkpoint
