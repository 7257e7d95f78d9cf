#include "trireme/train/config/registry.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/data/tolerant.h"
#include "trireme/model/deferred.h"
#include "trireme/train/config/internal/config_keys.h"

namespace trireme::train {
namespace {

/// A kind of names, and its names that are taken.
struct Kind {
  std::string what;
  std::vector<std::string> taken;
};

/// A name that needs no quotes, as a TOML value and as a table.
bool is_bare_key(const std::string& name) {
  const auto fits = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-'; };
  return !name.empty() && std::all_of(name.begin(), name.end(), fits);
}

void take_name(const std::string& name, Kind& kind) {
  require(is_bare_key(name), kind.what, " \"", name, "\" cannot be named so: use letters, digits, _ and -");
  require(std::find(kind.taken.begin(), kind.taken.end(), name) == kind.taken.end(), kind.what, " \"", name,
          "\" is there already; choose another name (taken: ", join(kind.taken), ")");
  kind.taken.push_back(name);
}

template <class Parts>
void take_names(const Parts& parts, Kind kind) {
  for (const auto& part : parts) take_name(part.name(), kind);
}

void check_names(const OwnTypes& own) {
  take_names(own.models, {"model", model::model_names()});
  take_names(own.datasets, {"data set", data::data_names()});
  take_names(own.objectives, {"objective", objective::objective_names()});
  Kind metrics{"metric", objective::metric_names()};
  metrics.taken.emplace_back("loss");
  for (const objective::Metric& metric : own.metrics) {
    take_name(metric.name, metrics);
    require(metric.measure != nullptr, "metric \"", metric.name, "\" measures nothing; give it `measure`");
  }
}

ConfigKey row_of(const std::string& table, const OwnKey& own) {
  const std::string name = table + "." + own.name;
  return {.name = name,
          .meaning = own.meaning,
          .allowed = own.allowed,
          .get =
              [name, value = own.default_value](const RunConfig& config) {
                const auto found = config.own.find(name);
                return found == config.own.end() ? value : found->second;
              },
          .set = [name](RunConfig& config, const ConfigValue& value) { config.own[name] = value; },
          .on_resume = own.on_resume};
}

class OwnRows {
 public:
  explicit OwnRows(std::vector<ConfigKey> shipped) : rows_(std::move(shipped)) {
    for (const ConfigKey& row : rows_) tables_.insert(row.name.substr(0, row.name.find('.')));
  }
  template <class Parts>
  void add(const Parts& parts) {
    for (const auto& part : parts) {
      if (part.keys().empty()) continue;
      require(tables_.insert(part.name()).second, "the keys of \"", part.name(), "\" would form the table [",
              part.name(), "], which is there already; choose another name");
      for (const OwnKey& key : part.keys()) add(part.name(), key);
    }
  }
  std::vector<ConfigKey> take() { return std::move(rows_); }

 private:
  void add(const std::string& table, const OwnKey& key) {
    ConfigKey row = row_of(table, key);
    require(is_bare_key(key.name), "key \"", row.name, "\" cannot be named so: use letters, digits, _ and -");
    for (const ConfigKey& before : rows_)
      require(before.name != row.name, "key ", row.name, " is given twice; leave one out");
    check_allowed(row, key.default_value);
    rows_.push_back(std::move(row));
  }

  std::vector<ConfigKey> rows_;
  std::set<std::string> tables_;
};

template <class Parts>
std::vector<std::string> names_of(const Parts& parts) {
  std::vector<std::string> names;
  for (const auto& part : parts) names.push_back(part.name());
  return names;
}

OwnNames names_of(const OwnTypes& own) {
  OwnNames names{.models = names_of(own.models),
                 .datasets = names_of(own.datasets),
                 .objectives = names_of(own.objectives),
                 .metrics = {}};
  for (const objective::Metric& metric : own.metrics) names.metrics.push_back(metric.name);
  return names;
}

const OwnTypes& own_of(const RunConfig& config) {
  static const OwnTypes kNone;
  return config.registry ? config.registry->own() : kNone;
}

template <class Parts>
auto find_part(const Parts& parts, const std::string& name) -> decltype(parts.data()) {
  for (const auto& part : parts) {
    if (part.name() == name) return &part;
  }
  return nullptr;
}

/// While it exists, libtorch's CPU generator draws numbers from that seed.
class SeededScope {
 public:
  explicit SeededScope(std::uint64_t seed) : before_(state()) {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(seed);
  }
  ~SeededScope() {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    generator.set_state(before_);
  }
  SeededScope(const SeededScope&) = delete;
  SeededScope& operator=(const SeededScope&) = delete;

 private:
  static at::Tensor state() {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    return generator.get_state();
  }

  const at::Tensor before_;
};

std::vector<objective::Metric> metrics_of(const RunConfig& config) {
  return objective::make_metrics(config.objective, objective::TargetKind::kAny, own_of(config).metrics);
}

}  // namespace

Registry::Registry(OwnTypes own) : own_(std::move(own)) {
  check_names(own_);
  OwnRows rows(make_config_key_table(names_of(own_)));
  rows.add(own_.models);
  rows.add(own_.datasets);
  rows.add(own_.objectives);
  keys_ = std::make_shared<const std::vector<ConfigKey>>(rows.take());
}

data::DataOptions data_options(const RunConfig& config) {
  data::DataOptions options = config.data;
  if (options.target == "auto" && data::has_columns(options.name))
    options.target = objective::target_of_objective(config.objective);
  options.ignored_labels = config.objective.ignored_classes;
  return options;
}

data::DataSource open_data(const RunConfig& config, const Log& log) {
  const data::DataOptions options = data_options(config);
  const OwnData* part = find_part(own_of(config).datasets, options.name);
  if (part == nullptr) return data::open_data(options, static_cast<std::uint64_t>(config.run.seed), log);
  data::DataSource source = part->make({.config = config, .log = log});
  if (source.name.empty()) source.name = part->name();
  return data::with_retries(data::with_target_options(std::move(source), options), options, log);
}

std::shared_ptr<model::Model> make_model(const RunConfig& config, const data::DataSource& data,
                                         std::int64_t num_outputs) {
  const auto seed = static_cast<std::uint64_t>(config.run.seed);
  const OwnModel* part = find_part(own_of(config).models, config.model.name);
  if (part == nullptr) {
    return model::deferred(
        [&] { return model::make_model(config.model, data.input_shape, num_outputs, seed); });
  }
  std::shared_ptr<model::Model> model;
  {
    const SeededScope scope(seed);
    model = part->make({.config = config, .data = data, .num_outputs = num_outputs});
  }
  require(model != nullptr, "model.name = \"", part->name(), "\" makes no model: its function returned null");
  if (!model::is_deferred(*model)) model->initialise(seed);
  return model;
}

std::shared_ptr<const objective::Objective> make_objective(const RunConfig& config,
                                                           const objective::Task& task) {
  const OwnTypes& own = own_of(config);
  const OwnObjective* part = find_part(own.objectives, config.objective.name);
  if (part == nullptr) {
    objective::Task with_own = task;
    with_own.own_metrics = own.metrics;
    return objective::make_objective(config.objective, with_own);
  }
  auto objective =
      part->make({.config = config, .data = task.data, .model = task.model, .metrics = metrics_of(config)});
  require(objective != nullptr, "objective.name = \"", part->name(),
          "\" makes no objective: its function returned null");
  return objective;
}

}  // namespace trireme::train
