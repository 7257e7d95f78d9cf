#pragma once
// The costs from which the time and memory of any plan for a model are estimated (estimate.h): layers of the
// model on micro-batches, exchanges between ranks, updates. A value: measured on the ranks at hand, written
// to a file, read on another machine.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"
#include "trireme/train/estimate/model_costs.h"
#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {

/// A straight line: `fixed_s` and `unit_s` for each unit.
struct CostLine {
  double fixed_s = 0, unit_s = 0;
  /// Seconds of so many units.
  double of(double units) const { return fixed_s + unit_s * units; }
};

/// Exchanges of a group of `ranks` ranks that compute nothing meanwhile. Units are bytes of the whole tensor:
/// of all_reduce and send the tensor, of reduce_scatter the input, of all_gather the output.
struct ExchangeCosts {
  int ranks = 1;
  CostLine all_reduce = {}, reduce_scatter = {}, all_gather = {}, send = {};
  /// Share of an exchange's time that a computation beside it loses, 0 to 1: 0 where exchanges use no core
  /// that computations need.
  double share_of_core = 0;
};

struct Measurements {
  std::string processor = {};  ///< for readers
  int threads = 1;             ///< of each rank, for operators
  std::string model = {};      ///< model_key()
  /// By rising samples, each with the same layers.
  std::vector<ModelUse> costs = {};
  ExchangeCosts exchanges = {};
  CostLine update = {};  ///< of the optimizer, with clipping where the configuration clips; units: parameters
};

/// The keys of the plan's configuration that decide its costs, a line each: model, data, objective,
/// precision, kernels, device, threads, backend, optimizer, ranks that hold parts of layers or sequences.
std::string model_key(const ParallelPlan& plan);

/// The model on micro-batches of `samples`: as measured, else on the line between the two nearest sizes. Of
/// one size all costs but those of parameters are proportional to samples. Throws InvalidArgument: nothing
/// was measured.
ModelUse model_at(const Measurements& measured, std::int64_t samples);

/// Measures the plan's model, at the plan's micro-batch and at a quarter of it, the exchanges of all ranks
/// and the optimizer's update. Every rank measures at the same time, so that ranks take from each other what
/// they take in training; times are means over ranks. The same on every rank. Collective over the world.
/// Time: about forty steps. Throws InvalidArgument as a Trainer for the plan would; DataError, CommError.
Measurements measure_costs(const ParallelPlan& plan, comm::Context& context, const data::DataSource& data);

/// As JSON. Throws DataError: the file cannot be written.
void write_measurements(const std::filesystem::path& file, const Measurements& measured);
/// Throws DataError with the file: it cannot be read, or a field is missing or has another type.
Measurements read_measurements(const std::filesystem::path& file);

}  // namespace trireme::train
