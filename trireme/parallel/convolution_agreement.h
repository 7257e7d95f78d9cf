#pragma once
// One choice of kernels for all ranks (model/convolution_choice.h): what rank 0 has measured on its machine
// counts for every rank, on other machines too, so that replicas compute alike.

#include <cstdint>

#include "trireme/comm/context.h"
#include "trireme/model/convolution_choice.h"
#include "trireme/model/convolution_measurement.h"

namespace trireme::parallel {

/// Rank 0's choice. Collective. Throws CommError.
model::ConvolutionChoice agreed(comm::Group& group, const model::ConvolutionChoice& mine);

/// What is fastest here, by times in the user's cache or measured now: some tenths of a second on this thread
/// for each shape that is new; a log line says what was measured.
model::ConvolutionChoice measured_convolutions_here(const Log& log, const model::Convolutions& convolutions);

/// That of rank 0, for all. `inputs` (batch, ...): a micro-batch. For loops of one's own:
///   const model::ConvolutionChoice choice = measured_convolutions(context, *model, inputs);
///   for (...) { const model::ConvolutionScope scope(choice); ... one step ... }
/// Collective. Throws CommError.
model::ConvolutionChoice measured_convolutions(comm::Context& context, model::Model& model,
                                               const Fields& inputs);

}  // namespace trireme::parallel
