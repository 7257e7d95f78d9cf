#pragma once
// Measures which kernels are fastest for the convolutions of a model on this machine
// (model/convolution_choice.h). The times are kept in the user's cache, so a machine measures a shape once.
// The cache is $XDG_CACHE_HOME/trireme, else ~/.cache/trireme. It has one file per processor model,
// instruction set, number of threads and version of libtorch.

#include <compare>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trireme/model/convolution_choice.h"
#include "trireme/model/model.h"

namespace trireme::model {

/// A kernel, and the memory format of activations.
struct ConvolutionWay {
  bool channels_last = false;
  ConvolutionKernel kernel = ConvolutionKernel::kAten;
  auto operator<=>(const ConvolutionWay&) const = default;
};

struct PassTimes {
  double forward_us = 0, of_input_us = 0, of_weight_us = 0;
  double sum_us() const { return forward_us + of_input_us + of_weight_us; }
  bool operator==(const PassTimes&) const = default;
};

/// Measured times, by shape and way.
using ConvolutionTimes = std::map<ConvolutionWay, PassTimes>;

/// Input of a choice: the convolutions of a model, repeated ones repeated, and the samples that it computes
/// at once.
struct Convolutions {
  std::vector<ConvolutionShape> shapes;
  std::int64_t batch = 1;
  std::optional<bool> channels_last = {};  ///< memory format of activations; empty: the faster one
};

/// Those of a model of images, as it computes them in evaluation mode on the first sample of `inputs`
/// (batch, ...), in f32; none for a model without torch::nn::Conv2d, or one on another device. Leaves no
/// trace in the model. Cost: a forward of one sample, with memory for one layer more where the model is
/// deferred.
Convolutions convolutions_of(Model& model, const Fields& inputs, std::int64_t batch);

/// For each pass of each shape the kernel with the least time, and the layout whose sum is least. A gain of
/// less than a tenth keeps ATen and contiguous. `times[i]` are those of `convolutions.shapes[i]`. Pure.
ConvolutionChoice fastest(const Convolutions& convolutions, const std::vector<ConvolutionTimes>& times);

/// Measures for a tenth of a second or a few turns, whichever is less, and for at least two turns. The time
/// is processor time, or wall time with several threads.
ConvolutionTimes measure_convolution(const ConvolutionShape& shape, std::int64_t batch);

/// Conditions of the times besides the shape: a few lines of text.
std::string convolution_conditions();

/// Empty when the environment names no place for caches.
std::filesystem::path convolution_cache_folder();

struct CachedTimes {
  std::vector<ConvolutionTimes> times;  ///< of each shape, in the order asked for
  int measured_now = 0;                 ///< shapes
  std::string not_kept_because = {};  ///< why the cache could not be written; empty: it was, or was not to be
};

/// The times kept in `folder` for these conditions, else those that `measure` returns, which are then kept
/// next to the others. A file that is damaged, of other conditions or unreadable counts as empty. An empty
/// folder: nothing is kept.
CachedTimes cached_convolutions(const std::filesystem::path& folder, const std::string& conditions,
                                const Convolutions& convolutions,
                                const std::function<decltype(measure_convolution)>& measure);

}  // namespace trireme::model
