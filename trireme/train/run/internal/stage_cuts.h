#pragma once
// Cuts into stages that follow from measured times (parallel.partition = "time"): a run writes them down, and
// a resume takes those of its checkpoint.

#include <string>

#include "trireme/train/run/recovery.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {

/// The plan with the cuts of the newest checkpoint of the run's folder, where its own are to be measured and
/// rank 0 resumes: its `resume_mode` counts. Without a checkpoint, or with cuts into another number of
/// stages: the plan itself. Collective.
ParallelPlan with_saved_cuts(const ParallelPlan& plan, comm::Context& context, ResumeMode resume_mode);

/// "stages of equal measured time begin at layers 0 (fc1), 2 (fc3); parallel.cuts = [2] repeats them"
std::string cuts_in_words(const Trainer& trainer);

}  // namespace trireme::train
