#include "trireme/parallel/pipeline/internal/cut.h"

#include "trireme/base/error.h"

namespace trireme::parallel {

void check_cuts(const std::vector<int>& cuts, int num_layers, int num_stages) {
  require(static_cast<int>(cuts.size()) == num_stages - 1, num_stages, " stages need ", num_stages - 1,
          " cuts, found ", cuts.size());
  int before = 0;
  for (const int cut : cuts) {
    require(cut > before && cut < num_layers, "a stage cannot begin at layer ", cut,
            ": the one before begins at ", before, " and there are ", num_layers, " layers");
    before = cut;
  }
}

}  // namespace trireme::parallel
