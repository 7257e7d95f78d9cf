#pragma once
// ProcessGroupGloo.hpp includes this header of gloo and uses nothing of it. See docs/adr.
