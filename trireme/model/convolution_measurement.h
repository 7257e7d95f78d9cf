#pragma once
// Measures which kernel small convolutions take best on this machine (model/convolution_choice.h), and keeps
// the outcome in the user's cache, so that a machine measures once: $XDG_CACHE_HOME/trireme, else
// ~/.cache/trireme, one file per processor model, instruction set, number of threads and version of libtorch.

#include <filesystem>
#include <functional>
#include <string>

#include "trireme/model/convolution_choice.h"

namespace trireme::model {

/// Some tenths of a second of processor time, on this thread alone. oneDNN is taken from where on its forward and
/// backward together are faster by a tenth in the worst of several rounds, which take turns and count
/// processor time. Where nothing can be gained (more than one thread, libtorch without oneDNN) nothing is
/// measured. Uses no random numbers.
ConvolutionChoice measure_convolutions();

/// What the choice depends on: a few lines of text.
std::string convolution_conditions();

/// Empty when the environment names no place for caches.
std::filesystem::path convolution_cache_folder();

struct CachedChoice {
  ConvolutionChoice choice;
  bool measured_now = false;
  std::string not_kept_because = {};  ///< why the cache could not be written; empty: it was, or was not to be
};

/// The choice kept in `folder` for these conditions, else what `measure` returns, which is then kept. A file
/// that is damaged, of other conditions or unreadable counts as none. An empty folder: nothing is kept.
CachedChoice cached_convolutions(const std::filesystem::path& folder, const std::string& conditions,
                                 const std::function<ConvolutionChoice()>& measure);

}  // namespace trireme::model
