"""A conformance kit for attention: which properties has an attention function, of anybody?

    from jaxformer import conformance
    report = conformance.check(my_attention, layout="BTNH")
    print(report)

`check` calls a function of JAX, NumPy or PyTorch, and compares it with float64. The files, in reading order:

=====================  ================================================================================
oracle                 attention and its gradients in float64 NumPy, from the formula
adapter                `Request`, one call; `Adapter`, what a function takes, and how
engines                calls and derivatives by framework; `torch_functions` those of PyTorch
trials                 what a property is made of: `Sizes`, drawn inputs, `Outcome`
results, derivatives   the properties
check, report          `check` and its limits, shrinking; `Report`
plugin                 a test for each property, for pytest: ``-p jaxformer.conformance.plugin``
=====================  ================================================================================
"""

from jaxformer import lazy
from jaxformer.conformance.adapter import Adapter as Adapter
from jaxformer.conformance.adapter import LibraryAdapter as LibraryAdapter
from jaxformer.conformance.adapter import NotOfferedError as NotOfferedError
from jaxformer.conformance.adapter import Request as Request
from jaxformer.conformance.adapter import adapt as adapt
from jaxformer.conformance.check import check as check
from jaxformer.conformance.check import load as load
from jaxformer.conformance.report import Report as Report
from jaxformer.conformance.report import Row as Row
from jaxformer.conformance.trials import PROPERTIES as PROPERTIES

lazy.list_names(__name__)
