"""Makes the models of this folder and what scikit-learn itself says of them.

pip install scikit-learn skl2onnx
python tests/data/svm/make.py
"""

from pathlib import Path

import numpy as np
from skl2onnx import to_onnx
from sklearn.datasets import load_iris
from sklearn.svm import SVC, SVR, OneClassSVM

HERE = Path(__file__).parent
OPSETS = {"": 17, "ai.onnx.ml": 3}


def main() -> None:
    x, y = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order].astype(np.float32), y[order]
    words = np.array(["setosa", "versicolor", "virginica"])[y]
    models = {
        "classes": SVC(kernel="rbf", C=0.5, probability=True, random_state=0).fit(x, y),
        "words": SVC(kernel="poly", degree=2, probability=True, random_state=0).fit(x, words),
        "numbers": SVR(kernel="sigmoid", gamma=0.01).fit(x, y),
        "outliers": OneClassSVM(nu=0.3).fit(x),
    }
    seen = x[:40]
    known = {"x": seen}
    for name, fitted in models.items():
        (HERE / f"{name}.onnx").write_bytes(
            to_onnx(fitted, seen[:1], target_opset=OPSETS).SerializeToString()
        )
        known[name] = fitted.predict(seen)
        if hasattr(fitted, "predict_proba"):
            known[f"{name} likely"] = fitted.predict_proba(seen)
    np.savez_compressed(HERE / "expected.npz", **known)


if __name__ == "__main__":
    main()
