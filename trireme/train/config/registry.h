#pragma once
// Custom models, data sets, objectives and metrics of a program, by name. Each has its own configuration
// keys. A RunConfig that was read with a registry holds it. Code that opens data, makes a model or checks
// keys uses the registry of that configuration: nothing is global (ADR 0019).
//
//   struct TowerOptions { std::int64_t width = 64; };
//   const train::Keys<TowerOptions> keys = {{"width", &TowerOptions::width, "of a tower", {.least = 1}}};
//   train::OwnTypes own;
//   own.models = {{"towers", keys, [](const TowerOptions& options, const train::ModelTask&) {
//                    return std::make_shared<Towers>(options.width); }}};
//
// makes `model.name = "towers"` and the table [towers] with its key known. Immutable; thread-safe as far as
// the functions in it are.

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/base/log.h"
#include "trireme/data/dataset.h"
#include "trireme/model/model.h"
#include "trireme/objective/objective.h"
#include "trireme/train/config/config_value.h"
#include "trireme/train/config/run_config.h"

namespace trireme::train {

/// A key of a part's table, as the documentation and a resume see it.
struct OwnKey {
  std::string name;           ///< without its table: "width"
  ConfigValue default_value;  ///< as the options have it
  std::string meaning;
  Allowed allowed;
  OnResume on_resume;
};

/// A key that is a member of the part's options: a number, a flag, a text, or a list of numbers or texts.
template <class Options>
struct Key {
  /// Default: the member's. On a resume the value stays, unless `on_resume` allows a change.
  template <class Field>
  Key(std::string name, Field Options::*field, std::string meaning, Allowed allowed = {},
      OnResume on_resume = OnResume::kStays);

  OwnKey row;
  std::function<void(Options&, const ConfigValue&)> set;
};

/// The keys of a custom table. Each is a member of Options with bounds and a line of help.
template <class Options>
using Keys = std::vector<Key<Options>>;

/// A type by name: how it is made for a task.
template <class Made, class Task>
class Part {
 public:
  /// Without keys: `maker(task)`.
  template <std::invocable<const Task&> Make>
  Part(std::string name, Make maker)
      : name_(std::move(name)),
        make_([maker = std::move(maker)](const Task& task) -> Made { return maker(task); }) {}
  /// Calls `maker(options, task)` with the values of the table [name].
  template <class Options, std::invocable<const Options&, const Task&> Make>
  Part(std::string name, const Keys<Options>& keys, Make maker) : name_(std::move(name)) {
    for (const Key<Options>& key : keys) keys_.push_back(key.row);
    make_ = [prefix = name_ + ".", keys, maker = std::move(maker)](const Task& task) -> Made {
      Options options;
      for (const Key<Options>& key : keys) {
        const auto found = task.config.own.find(prefix + key.row.name);
        if (found != task.config.own.end()) key.set(options, found->second);
      }
      return maker(options, task);
    };
  }

  const std::string& name() const { return name_; }
  const std::vector<OwnKey>& keys() const { return keys_; }
  /// The object that the maker makes for the task. Passes on the maker's exceptions.
  Made make(const Task& task) const { return make_(task); }

 private:
  std::string name_;
  std::vector<OwnKey> keys_;
  std::function<Made(const Task&)> make_;
};

/// Input of a maker of models: the run's configuration and its data.
struct ModelTask {
  const RunConfig& config;
  const data::DataSource& data;
  std::int64_t num_outputs;  ///< that the objective asks for, of a sample or token
};

/// Input of a maker of data.
struct DataTask {
  const RunConfig& config;
  const Log& log;  ///< gets warnings while samples are read
};

/// Input of a maker of objectives.
struct ObjectiveTask {
  const RunConfig& config;
  const data::DataSource& data;
  model::Model* model;                     ///< null while only data are checked
  std::vector<objective::Metric> metrics;  ///< those that objective.metrics names
};

/// Its function runs as after torch::manual_seed(run.seed), so that all ranks draw the same values, and the
/// model keeps them. A model that overrides Model::initialise gets its first values there, with run.seed.
using OwnModel = Part<std::shared_ptr<model::Model>, ModelTask>;
using OwnData = Part<data::DataSource, DataTask>;
using OwnObjective = Part<std::shared_ptr<const objective::Objective>, ObjectiveTask>;

/// All that a program brings of its own; run_app() takes it.
struct OwnTypes {
  std::vector<OwnModel> models = {};
  std::vector<OwnData> datasets = {};
  std::vector<OwnObjective> objectives = {};
  std::vector<objective::Metric> metrics = {};  ///< for any objective
};

struct ConfigKey;

class Registry {
 public:
  /// Throws InvalidArgument: a name that is shipped or given twice, or is no TOML key; a table that there is
  /// already; a default that its key does not allow.
  explicit Registry(OwnTypes own);

  const OwnTypes& own() const { return own_; }
  /// Ours and its own.
  const std::vector<ConfigKey>& keys() const { return *keys_; }

 private:
  OwnTypes own_;
  std::shared_ptr<const std::vector<ConfigKey>> keys_;
};

/// The parts that a configuration names, shipped or own. They throw as data::open_data, model::make_model and
/// objective::make_objective do. A shipped model is deferred (model/deferred.h).
data::DataSource open_data(const RunConfig& config, const Log& log = Log());
/// The table [data] with the choices of the objective: the meaning of a target, and labels that are ignored.
data::DataOptions data_options(const RunConfig& config);
std::shared_ptr<model::Model> make_model(const RunConfig& config, const data::DataSource& data,
                                         std::int64_t num_outputs);
std::shared_ptr<const objective::Objective> make_objective(const RunConfig& config,
                                                           const objective::Task& task);

template <class Options>
template <class Field>
Key<Options>::Key(std::string name, Field Options::*field, std::string meaning, Allowed allowed,
                  OnResume on_resume)
    : row{.name = std::move(name),
          .default_value = HeldAs<Field>(Options().*field),
          .meaning = std::move(meaning),
          .allowed = std::move(allowed),
          .on_resume = on_resume},
      set([field](Options& options, const ConfigValue& value) {
        options.*field = static_cast<Field>(std::get<HeldAs<Field>>(value));
      }) {
  using Limits = std::numeric_limits<Field>;
  if constexpr (std::is_integral_v<Field> && !std::is_same_v<Field, bool> && sizeof(Field) < 8)
    row.allowed.most = std::min(row.allowed.most, static_cast<double>(Limits::max()));
  if constexpr (std::is_integral_v<Field> && !std::is_same_v<Field, bool> &&
                (sizeof(Field) < 8 || std::is_unsigned_v<Field>))
    row.allowed.least = std::max(row.allowed.least, static_cast<double>(Limits::min()));
}

}  // namespace trireme::train
