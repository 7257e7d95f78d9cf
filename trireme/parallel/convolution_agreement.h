#pragma once
// One choice of kernels for all ranks (model/convolution_choice.h): the measurement of rank 0 on its machine
// applies to every rank, on other machines too, so that replicas compute alike.

#include <cstdint>

#include "trireme/comm/context.h"
#include "trireme/model/convolution_choice.h"
#include "trireme/model/convolution_measurement.h"

namespace trireme::parallel {

/// Rank 0's choice. Collective. Throws CommError.
model::ConvolutionChoice agreed(comm::Group& group, const model::ConvolutionChoice& mine);

/// The fastest kernels here, by times in the user's cache or measured now. A measurement takes some tenths of
/// a second on this thread for each new shape. A log line names the measurements.
model::ConvolutionChoice measured_convolutions_here(const Log& log, const model::Convolutions& convolutions);

/// Its result on rank 0, for all ranks. `inputs` (batch, ...): a micro-batch. For custom training loops:
///   const model::ConvolutionChoice choice = measured_convolutions(context, *model, inputs);
///   for (...) { const model::ConvolutionScope scope(choice); ... one step ... }
/// Collective. Throws CommError.
model::ConvolutionChoice measured_convolutions(comm::Context& context, model::Model& model,
                                               const Fields& inputs);

}  // namespace trireme::parallel
