#pragma once
// Checks before a step is done, with the reason of a rejection. All training goes through all of it: the
// command line before it starts ranks, every Trainer when it is made, run_training() before it touches a
// file. In this order: the plan (parallel_plan.h), the data, the model. Not collective.

#include <memory>
#include <string>

#include "trireme/data/dataset.h"
#include "trireme/model/model.h"
#include "trireme/objective/objective.h"
#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {

using ObjectivePtr = std::shared_ptr<const objective::Objective>;

/// `own`, or where it is null the objective of the configuration, for this data and, once it is there, this
/// model. Throws InvalidArgument.
ObjectivePtr objective_for(const RunConfig& config, const ObjectivePtr& own, const objective::Task& task);

/// Both splits: whether there are samples, and inputs and targets of the first one. Throws InvalidArgument
/// with shape and dtype found and expected; DataError for a sample that is wrong or cannot be read.
void check_data(const data::DataSource& data, const objective::Objective& objective);

/// Warns of legal settings that are probably a mistake: files that are left out, a global batch larger than
/// the training data.
void warn_of_data(const RunConfig& config, const data::DataSource& data, const Log& log);

/// Throws DataError where an objective whose counts do not depend on values counts another number for a batch
/// than for as many times sample 0: sizes vary, and any mean would depend on how batches are split.
void check_count(const objective::Objective& objective, const data::Example& batch, double count_of_sample);

/// check_data(), and whether plan, data and objective fit each other. Throws InvalidArgument or DataError:
/// fewer samples than ranks, a warm-up that is longer than the run, a metric that is not measured. Also keys
/// that need evaluations, without a second split.
void check_data_of(const ParallelPlan& plan, const data::DataSource& data, const ObjectivePtr& own = nullptr);

/// The model of the configuration, tried on one sample of the training data, with its loss and metrics, and
/// for the plan's cut. Throws InvalidArgument that names model and data where the one cannot take the other,
/// DataError.
std::shared_ptr<model::Model> make_checked_model(const ParallelPlan& plan, const data::DataSource& data,
                                                 const ObjectivePtr& own = nullptr);

/// A user's own model, tried in the same way. Nothing of it is changed. Throws InvalidArgument, DataError.
std::shared_ptr<model::Model> checked_model(std::shared_ptr<model::Model> own_model, const ParallelPlan& plan,
                                            const data::DataSource& data, const ObjectivePtr& own = nullptr);

/// Throws InvalidArgument, with step and sizes, if a micro-batch of the run has one sample and a batch norm
/// of the model rejects it. The batch norm must throw in training on one sample and not on two. `what` names
/// the model. Runs the model on samples only where both are possible. The model is not changed. Throws
/// DataError.
void check_single_samples(model::Model& model, const std::string& what, const ParallelPlan& plan,
                          const data::DataSource& data);

/// The learning rate of the configuration, scaled with the batch where lr.scale_with_batch is set. Throws
/// InvalidArgument.
std::unique_ptr<optim::LearningRate> make_learning_rate(const RunConfig& config, std::int64_t total_steps);

/// `rate`, of a step of train.global_batch samples, scaled by lr.scale_with_batch for one of `batch`.
double rate_for_batch(const RunConfig& config, double rate, std::int64_t batch);

}  // namespace trireme::train
