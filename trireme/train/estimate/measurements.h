#pragma once
// The costs from which the time and memory of any plan for a model are estimated (estimate.h): layers of the
// model on micro-batches, exchanges between ranks, updates. A value: measured on the available ranks, written
// to a file, read on another machine.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/model/model.h"
#include "trireme/objective/objective.h"
#include "trireme/train/estimate/link_levels.h"
#include "trireme/train/estimate/model_costs.h"
#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {

/// A straight line: `fixed_s` and `unit_s` for each unit.
struct CostLine {
  double fixed_s = 0, unit_s = 0;
  /// Seconds of so many units.
  double of(double units) const { return fixed_s + unit_s * units; }
};

/// A line through two points, without negative coefficients.
CostLine line_through(double small, double small_s, double large, double large_s);

/// All-reduces of gradients through a codec (parallel.compression). Units: bytes of the gradients.
struct CodecCost {
  std::string codec = {};
  CostLine all_reduce = {};
};

/// Exchanges of a group of `ranks` ranks that compute nothing meanwhile. Units are bytes of the whole tensor:
/// of all_reduce and send the tensor, of reduce_scatter the input, of all_gather the output.
struct ExchangeCosts {
  int ranks = 1;
  CostLine all_reduce = {}, reduce_scatter = {}, all_gather = {}, send = {};
  /// Share of an exchange's time that a computation next to it loses, 0 to 1: 0 where exchanges use no core
  /// that computations need.
  double share_of_core = 0;
  std::vector<CodecCost> codecs = {};  ///< the configuration's, or those that a planner names
};

struct Measurements {
  std::string processor = {};  ///< for readers
  int threads = 1;             ///< of each rank, for operators
  std::string model = {};      ///< model_key()
  /// By rising samples, each with the same layers.
  std::vector<ModelUse> costs = {};
  /// Of a micro-batch. The model has rejected fewer, such as one sample per channel of a batch norm.
  std::int64_t least_samples = 1;
  ExchangeCosts exchanges = {};  ///< of all ranks
  /// Of the ranks of a host, on all hosts at the same time; of 1 rank where all ranks are on one host, or
  /// each on its own.
  ExchangeCosts within_host = {};
  int ranks_of_host = 0;  ///< where there are several hosts of as many ranks; else 0
  CostLine update = {};  ///< of the optimizer, with clipping where the configuration clips; units: parameters
  /// Of an update whose optimizer state is in files (offload.optimizer), with the same units. 0: not
  /// measured.
  CostLine update_in_files = {};
  /// Time of a step besides computations and exchanges: batches, reports, the program itself. Units:
  /// micro-batches of a stage. 0: not measured.
  CostLine overhead = {};
  LinkLevels links = {};  ///< described or given: then they time collectives; not part of a file
  double base_bytes = 0;  ///< of a rank's process next to tensors (process_memory.h); 0: a device, or unknown
};

/// Of an update with the optimizer's state in files, where that was measured; else of one with it in memory.
const CostLine& cost_of_update(const Measurements& measured, bool is_in_files);

/// The keys of the plan's configuration that decide its costs, a line each: model, data, objective,
/// precision, kernels, device, threads, backend, optimizer, ranks that hold parts of layers or sequences.
std::string model_key(const ParallelPlan& plan);

/// The model on micro-batches of `samples`: as measured, else on the line between the two nearest sizes. Of
/// one size all costs but those of parameters are proportional to samples. Throws InvalidArgument: nothing
/// was measured.
ModelUse model_at(const Measurements& measured, std::int64_t samples);

/// Options of measure_costs().
struct CostOptions {
  /// Of the micro-batches, by rising samples; empty: the plan's, and a quarter of it.
  std::vector<std::int64_t> samples = {};
  /// Measured by the same ranks for another form of the model: its exchanges and update hold; null: none.
  const Measurements* other_form = nullptr;
  std::shared_ptr<model::Model> model = nullptr;  ///< null: the configuration's. A custom model is unchanged
  std::shared_ptr<const objective::Objective> objective = nullptr;
};

/// Measures the plan's model on micro-batches, the exchanges of all ranks and the optimizer's update. Every
/// rank measures at the same time, so that ranks compete for the machine as in training; times are means over
/// ranks. The same on every rank. Collective over the world. Time: about forty steps. Throws InvalidArgument
/// as a Trainer for the plan would; DataError, CommError.
Measurements measure_costs(const ParallelPlan& plan, comm::Context& context, const data::DataSource& data,
                           const CostOptions& options = {});

/// Costs of forms of one model: whole, and in parts of layers or sequences.
using MeasuredForms = std::vector<Measurements>;

/// The costs of the plan's form, or the first ones: estimate() then names the key that differs.
const Measurements& form_of(const MeasuredForms& forms, const ParallelPlan& plan);

/// With the rates of these links in place of the measured ones, for `world_size` ranks, which may be more
/// than have measured. Layers in parts exchange within their measured time: such forms stay if a host of
/// several holds all parts, as measured here, and are left out otherwise. Throws InvalidArgument: no form
/// stays; ranks that do not fill whole hosts.
MeasuredForms over_links(MeasuredForms forms, const LinkLevels& links, int world_size);

/// JSON.
std::string to_text(const MeasuredForms& forms);
/// Throws DataError: a field is missing or has another type. `name` is the source's name in messages.
MeasuredForms parse_measurements(const std::string& content, const std::string& name);

/// Throws DataError: the file cannot be written.
void write_measurements(const std::filesystem::path& file, const MeasuredForms& forms);
/// Throws DataError with the file: it cannot be read, or parse_measurements() rejects it.
MeasuredForms read_measurements(const std::filesystem::path& file);

}  // namespace trireme::train
