#pragma once
// How the rows of the key table are written.

#include <string>
#include <utility>

#include "trireme/train/config/internal/config_keys.h"

namespace trireme::train {

/// A row for `config.*table.*field`.
template <class Table, class Field>
ConfigKey key(std::string name, Table RunConfig::*table, Field Table::*field, std::string meaning,
              Allowed allowed = {}) {
  return {.name = std::move(name),
          .meaning = std::move(meaning),
          .allowed = std::move(allowed),
          .get = [=](const RunConfig& config) { return ConfigValue(HeldAs<Field>(config.*table.*field)); },
          .set =
              [=](RunConfig& config, const ConfigValue& value) {
                config.*table.*field = static_cast<Field>(std::get<HeldAs<Field>>(value));
              }};
}

/// A row for `config.*table.*part.*field`.
template <class Table, class Part, class Field>
ConfigKey key(std::string name, Table RunConfig::*table, Part Table::*part, Field Part::*field,
              std::string meaning, Allowed allowed = {}) {
  return {
      .name = std::move(name),
      .meaning = std::move(meaning),
      .allowed = std::move(allowed),
      .get = [=](const RunConfig& config) { return ConfigValue(HeldAs<Field>(config.*table.*part.*field)); },
      .set =
          [=](RunConfig& config, const ConfigValue& value) {
            config.*table.*part.*field = static_cast<Field>(std::get<HeldAs<Field>>(value));
          }};
}

/// The same row for a key that a resumed run has to keep.
inline ConfigKey stays(ConfigKey row) {
  row.on_resume = OnResume::kStays;
  return row;
}

/// The same for one that helps to decide when stages update.
inline ConfigKey updates_stay(ConfigKey row) {
  row.on_resume = OnResume::kUpdatesStay;
  return row;
}

/// The same for one that a resume changes only where it is named. `before_it_was`: the value for runs without
/// such a key.
inline ConfigKey by_name(ConfigKey row, std::optional<ConfigValue> before_it_was = {}) {
  row.on_resume = OnResume::kMayChangeByName;
  row.before_it_was = std::move(before_it_was);
  return row;
}

}  // namespace trireme::train
