#pragma once
// Which layers make up a stage, which rank holds it, and whether all ranks of a pipeline see it alike.

#include <string>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/model/layer.h"
#include "trireme/parallel/pipeline/pipeline.h"

namespace trireme::parallel {

/// The stages of the program. Throws InvalidArgument: more stages than layers, cuts that are none. Pure.
std::vector<Pipeline::StageLayers> place_stages(const schedule::Program& program,
                                                const std::vector<model::Layer>& layers,
                                                const std::vector<int>& cuts);

/// Throws InvalidArgument, on every rank, with the first thing in which two ranks of the group differ:
/// layers, stages, the program or the options. Collective.
void check_same_pipeline(comm::Group& group, const schedule::Program& program,
                         const std::vector<model::Layer>& layers,
                         const std::vector<Pipeline::StageLayers>& stages, const PipelineOptions& options);

}  // namespace trireme::parallel
