#pragma once
// One choice of kernels for all ranks (model/convolution_choice.h): what rank 0 has measured on its machine
// counts for every rank, on other machines too, so that replicas compute alike.

#include "trireme/comm/context.h"
#include "trireme/model/convolution_choice.h"

namespace trireme::parallel {

/// Rank 0's choice. Collective. Throws CommError.
model::ConvolutionChoice agreed(comm::Group& group, const model::ConvolutionChoice& mine);

/// What is in the user's cache, or is measured now, some hundred milliseconds on this thread; a log line says
/// what was measured. ATen's where this rank has several threads.
model::ConvolutionChoice measured_convolutions_here(const Log& log);

/// That of rank 0, for all. For loops of one's own:
///   const model::ConvolutionChoice choice = measured_convolutions(context);
///   for (...) { const model::ConvolutionScope scope(choice); ... one step ... }
/// Collective. Throws CommError.
model::ConvolutionChoice measured_convolutions(comm::Context& context);

}  // namespace trireme::parallel
