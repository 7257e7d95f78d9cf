#pragma once
// A checkpoint's record of the data set of its run, by which a resume recognises it: a text of lines "FACT
// VALUE".

#include <string>

#include "trireme/base/log.h"
#include "trireme/data/dataset.h"

namespace trireme::train {

std::string data_record_of(const data::DataSource& data);

/// `record` is a checkpoint's; empty: of one that has none, and nothing is compared. Throws DataError where
/// the training data are others: the order of samples would be another. Another second split is a warning.
void check_same_data(const data::DataSource& data, const std::string& record, const Log& log);

}  // namespace trireme::train
